"""What the ``wmrl`` command does: a module for each subcommand, with ``add(commands)`` and what it runs."""
