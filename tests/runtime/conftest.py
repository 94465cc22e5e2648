"""Its folder holds nets.py, saved_nets.py and torch_program.py: with a conftest the folders below can import them."""
