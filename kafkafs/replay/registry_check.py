"""Whether the schema registry of the target knows the schemas of messages, by the ids in front of keys and values."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np

from kafkafs.decoding import avro_kernel
from storage.errors import StorageError, error_text

if TYPE_CHECKING:
    from kafkafs.schemas.registry import Registry
    from storage.format.block import RecordBlock

_MOST_IDS: Final = 10_000
_MOST_BYTES: Final = 16 << 20
_TIMEOUT_S: Final = 30


class RegistryCheck:
    """Asks a registry (http or https, with user:password@ if it wants them) about each id once. `schemas`: those of the
    source. If there are any, an id that is not among them is no schema id, and is not asked about."""

    def __init__(self, url: str, schemas: Registry) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if parts.username is not None:
            login = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"
        self._schemas = schemas
        self._asked: set[int] = set()

    def problems(self, topic: str, block: RecordBlock) -> list[str]:
        """The problems of the ids that no earlier block had. StorageError if the registry does not answer."""
        problems = []
        for column in ("key", "value"):
            starts = block.key_start if column == "key" else block.value_start
            lengths = block.key_length if column == "key" else block.value_length
            ids = np.empty(len(block), np.int64)
            avro_kernel.find_ids(block.buffer, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), ids)
            for schema_id in np.unique(ids[ids >= 0]).tolist():
                known = self._schemas.by_id(schema_id, f"{topic}-{column}")
                if schema_id in self._asked or len(self._asked) >= _MOST_IDS or (self._schemas and known is None):
                    continue
                self._asked.add(schema_id)
                text = self._text(schema_id)
                if text is None:
                    problems.append(f"{self._url} does not know schema {schema_id} of {topic}, in {column}s")
                elif known is not None and _plain(text) != _plain(known.text):
                    problems.append(f"{self._url} has another schema {schema_id} than that of {topic}, in {column}s")
        return problems

    def _text(self, schema_id: int) -> str | None:
        """The text of a schema; None if the registry does not know it."""
        try:
            request = Request(f"{self._url}/schemas/ids/{schema_id}", headers=self._headers)
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                return str(json.loads(answer.read(_MOST_BYTES))["schema"])
        except HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise StorageError(f"{self._url} answers {error.code} for schema {schema_id}") from None
        except (URLError, OSError, ValueError, KeyError, TypeError) as error:
            reason = error_text(error.reason if isinstance(error, URLError) else error)
            raise StorageError(f"{self._url} does not answer as a schema registry: {reason}") from None


def _plain(text: str) -> Any:
    """A schema in a form that does not depend on its formatting."""
    try:
        return json.loads(text)
    except ValueError:
        return text.split()
