"""What runs on the far side: with the untrusted code, inside its namespaces.

Only the standard library may be imported here, and nothing from the rest of the package: a sandbox sees this folder alone.
"""
