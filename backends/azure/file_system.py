"""An adlfs file system for which a blank variable of the environment is unset.

adlfs asks whether a setting is None, and a variable such as ``AZURE_STORAGE_CONNECTION_STRING=`` is not: it would be a
connection string without an account, or hide the login that a machine has.
"""

from __future__ import annotations

from typing import Any

from adlfs import AzureBlobFileSystem

from streamer.core.secrets.environment import is_blank

__all__ = ["AzureFileSystem"]


class _Setting:
    """An attribute that is None if it is set to a blank text."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return None if instance is None else vars(instance).get(self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = None if is_blank(value) else value


class AzureFileSystem(AzureBlobFileSystem):  # type: ignore[misc]  # adlfs has no types
    """adlfs's file system; the settings are those that it also takes from the environment."""

    account_key = _Setting()
    account_name = _Setting()
    client_id = _Setting()
    client_secret = _Setting()
    connection_string = _Setting()
    sas_token = _Setting()
    tenant_id = _Setting()
