"""Sparse training inside other people's trainers: a callback for Transformers and one for Lightning.

Each is imported when it is asked for, and needs its library: ``pip install 'cigl[transformers]'`` or
``'cigl[lightning]'``. Accelerate and Fabric leave the loop to the user, and ``cigl.attach`` works there as it is.
"""
