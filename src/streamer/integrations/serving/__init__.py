"""What the plug-ins of serving engines share: where weights lie, what their loaders are told, and small files."""
