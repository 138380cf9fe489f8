"""Kafka's properties of clients, as librdkafka has them."""

from pathlib import Path

import pytest

from kafkafs.replay.client_properties import translate
from storage.errors import InvalidConfig
from storage.format import properties

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def translated(text):
    return translate(properties.parse(text.encode()), Path("client.properties"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "security.protocol=SASL_SSL\ncompression.type=zstd",
            {"security.protocol": "SASL_SSL", "compression.type": "zstd"},
        ),
        (
            f'sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={PLAIN} username="a" \\\n  password="b\\\\"=;c";',
            {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": 'b"=;c'},
        ),
        (f"sasl.jaas.config={PLAIN} username='a b' password=c;", {"sasl.username": "a b", "sasl.password": "c"}),
        (
            f"sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://x\n"
            f'sasl.jaas.config={OAUTH} clientId="i" clientSecret="s" scope="c";',
            {
                "sasl.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://x",
                "sasl.oauthbearer.client.id": "i",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "c",
                "sasl.oauthbearer.method": "oidc",
            },
        ),
        ("ssl.endpoint.identification.algorithm=", {"ssl.endpoint.identification.algorithm": "none"}),
        ("ssl.endpoint.identification.algorithm=https", {"ssl.endpoint.identification.algorithm": "https"}),
        ("ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem", {"ssl.ca.location": "/ca.pem"}),
        ("ssl.truststore.certificates=-----BEGIN", {"ssl.ca.pem": "-----BEGIN"}),
        (
            "ssl.keystore.type=PEM\nssl.keystore.location=/k.pem\nssl.key.password=x",
            {"ssl.key.location": "/k.pem", "ssl.certificate.location": "/k.pem", "ssl.key.password": "x"},
        ),
        (
            "ssl.keystore.type=PKCS12\nssl.keystore.location=/k.p12\nssl.keystore.password=x",
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "x"},
        ),
        (
            "ssl.keystore.key=-----K\nssl.keystore.certificate.chain=-----C",
            {"ssl.key.pem": "-----K", "ssl.certificate.pem": "-----C"},
        ),
    ],
)
def test_what_is_translated(text, expected):
    assert translated(text) == (expected, [])


def test_what_has_no_effect():
    text = "bootstrap.servers=x:1\nacks=0\nenable.idempotence=false\nssl.protocol=TLS\nclient.id=c"
    unused = ["acks", "bootstrap.servers", "enable.idempotence", "ssl.protocol"]
    assert translated(text) == ({"client.id": "c"}, unused)


@pytest.mark.parametrize(
    "text",
    [
        "ssl.truststore.location=/t.jks",
        "ssl.truststore.location=/t.p12\nssl.truststore.type=PKCS12",
        "ssl.keystore.location=/k.jks\nssl.keystore.type=JKS",
        "config.providers=file",
    ],
)
def test_what_only_java_reads(text):
    with pytest.raises(InvalidConfig):
        translated(text)
