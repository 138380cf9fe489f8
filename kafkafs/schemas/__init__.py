"""Schemas: the types of the keys and values of a topic.

In: the records of `_schemas` (or a directory of schema files). Out: schemas by id, by GUID, by subject and version.
"""
