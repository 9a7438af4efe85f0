"""Reads safetensors files and folders of models, under Run:ai's names."""
