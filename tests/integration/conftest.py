"""Tests in the folders below may import what stands here, too."""
