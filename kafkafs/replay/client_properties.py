"""The properties file of Kafka's own clients (`--command-config`) as a configuration of librdkafka.

Sources: Kafka's CommonClientConfigs, SslConfigs and SaslConfigs; librdkafka's list of its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from storage.errors import InvalidConfig

_SAME: Final = frozenset(
    {
        "client.dns.lookup", "client.id", "client.rack", "compression.type", "connections.max.idle.ms",
        "delivery.timeout.ms", "linger.ms", "metadata.max.age.ms", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
        "retries", "retry.backoff.max.ms", "retry.backoff.ms", "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.service.name", "sasl.oauthbearer.token.endpoint.url",
        "security.protocol", "socket.connection.setup.timeout.ms", "ssl.key.password",
    }
)  # fmt: skip
_RENAMED: Final = {
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
# Options of Kafka's login modules. GSSAPI: what Krb5LoginModule calls them.
_JAAS: Final = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
    "principal": "sasl.kerberos.principal",
    "keyTab": "sasl.kerberos.keytab",
    "serviceName": "sasl.kerberos.service.name",
}
_JAAS_OPTION: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def translate(properties: Mapping[str, str], path: Path) -> tuple[dict[str, str], list[str]]:
    """These properties by librdkafka's names, and the names of those that have no effect here. InvalidConfig for a
    keystore or truststore that it cannot read: without it the connection would trust other certificates."""
    given = {name: text.strip() for name, text in properties.items()}
    config = {name: text for name, text in given.items() if name in _SAME and text}
    config |= {ours: given[name] for name, ours in _RENAMED.items() if given.get(name)}
    used = {*_SAME, *_RENAMED, "sasl.jaas.config", "ssl.endpoint.identification.algorithm"}
    for module, quoted, single, plain in (
        (match[1], match[2], match[3], match[4]) for match in _JAAS_OPTION.finditer(given.get("sasl.jaas.config", ""))
    ):
        if module in _JAAS:
            config[_JAAS[module]] = re.sub(r"\\(.)", r"\1", quoted or single or plain or "")
    if config.get("sasl.mechanisms") == "OAUTHBEARER":
        config["sasl.oauthbearer.method"] = "oidc"
    if "ssl.endpoint.identification.algorithm" in given:
        config["ssl.endpoint.identification.algorithm"] = given["ssl.endpoint.identification.algorithm"] or "none"
    if "config.providers" in given:
        raise InvalidConfig("config.providers needs Java", path=path, advice="Write the values themselves")
    for store, kinds in (("truststore", ("PEM",)), ("keystore", ("PEM", "PKCS12"))):
        place, kind = f"ssl.{store}.location", given.get(f"ssl.{store}.type", "JKS").upper()
        used |= {place, f"ssl.{store}.type", f"ssl.{store}.password"}
        if not given.get(place):
            continue
        if kind not in kinds:
            raise InvalidConfig(
                f"{place} is a {store} of type {kind}",
                path=path,
                expected=" or ".join(kinds),
                advice="`keytool -list -rfc -keystore FILE` prints certificates as PEM;"
                f" name that file, and set ssl.{store}.type=PEM",
            )
        if store == "truststore":
            config["ssl.ca.location"] = given[place]
        elif kind == "PEM":  # Kafka has the key and its certificates in one file
            config |= {"ssl.key.location": given[place], "ssl.certificate.location": given[place]}
        else:
            password = given.get(f"ssl.{store}.password", "")
            config |= {"ssl.keystore.location": given[place], "ssl.keystore.password": password}
    return config, sorted(given.keys() - used)
