"""What everybody uses: errors, files, locks, lazy imports, progress, images."""
