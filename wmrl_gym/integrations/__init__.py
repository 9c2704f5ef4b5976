"""Trainers: one module for each RL library, imported only when it is asked for."""
