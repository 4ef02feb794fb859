from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tfs_lite.transport.pem import certificate_problem, key_problem

AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes()


def issued(kind: trustme.KeyType = trustme.KeyType.ECDSA) -> tuple[bytes, bytes]:
    pair = AUTHORITY.issue_cert("localhost", key_type=kind)
    return pair.private_key_pem.bytes(), pair.cert_chain_pems[0].bytes()


KEY, CERT = issued()
RSA_KEY, RSA_CERT = issued(trustme.KeyType.RSA)
NOTE = "# für Jürgen\n".encode()
NO_FILE = "; the text itself is wanted here, not the name of a file"


def encrypted(format: serialization.PrivateFormat) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, format, serialization.BestAvailableEncryption(b"secret"))


def without_third_line(pem: bytes) -> bytes:
    lines = pem.splitlines(keepends=True)
    return b"".join(lines[:2] + lines[3:])


@pytest.mark.parametrize("pem", [CERT, CERT + CA, NOTE + CERT + NOTE, CERT.replace(b"\n", b"\r\n")])
def test_one_or_more_whole_certificates_are_good(pem: bytes) -> None:
    assert certificate_problem(pem) is None


@pytest.mark.parametrize(
    ("pem", "problem"),
    [
        (b"", f"holds no certificate in PEM form{NO_FILE}"),
        (b"/etc/tls/ca.pem", f"holds no certificate in PEM form{NO_FILE}"),
        (KEY, "holds no certificate in PEM form"),
        (CERT[:100], "holds a damaged certificate"),
        (without_third_line(CERT), "holds a damaged certificate"),
        (CERT + without_third_line(CA), "holds a damaged certificate"),
        (b"-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n", "holds a damaged certificate"),
        ("-----BEGIN CERTIFICATE-----\nä\n-----END CERTIFICATE-----\n".encode(), "holds a damaged certificate"),
    ],
)
def test_everything_else_is_no_certificate(pem: bytes, problem: str) -> None:
    assert certificate_problem(pem) == problem


@pytest.mark.parametrize(
    ("key", "certificates"), [(KEY, CERT), (RSA_KEY, RSA_CERT), (NOTE + KEY, NOTE + CERT), (KEY, CERT + CA)]
)
def test_the_key_of_the_first_certificate_is_good(key: bytes, certificates: bytes) -> None:
    assert key_problem(key, certificates) is None


@pytest.mark.parametrize(
    ("key", "certificates", "problem"),
    [
        (b"", CERT, f"holds no private key in PEM form{NO_FILE}"),
        (b"server.key", CERT, f"holds no private key in PEM form{NO_FILE}"),
        (CERT, CERT, "holds no private key in PEM form"),
        (issued()[0], CERT, "does not belong to the first certificate"),
        (RSA_KEY, CERT, "does not belong to the first certificate"),
        (issued(trustme.KeyType.RSA)[0], RSA_CERT, "does not belong to the first certificate"),
        (KEY, CA + CERT, "does not belong to the first certificate"),
        (without_third_line(KEY), CERT, "is damaged, or of a kind that is not known"),
        (KEY[:80], CERT, "is damaged, or of a kind that is not known"),
        (KEY.replace(b"EC PRIVATE", b"OPENSSH PRIVATE"), CERT, "is damaged, or of a kind that is not known"),
    ],
)
def test_everything_else_is_no_key_of_it(key: bytes, certificates: bytes, problem: str) -> None:
    assert key_problem(key, certificates) == problem


@pytest.mark.parametrize("format", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_a_key_with_a_pass_phrase_is_refused_without_asking_for_it(format: serialization.PrivateFormat) -> None:
    assert key_problem(encrypted(format), CERT) == "is encrypted; gRPC takes keys without a pass phrase only"


def test_a_weak_key_is_the_choice_of_the_operator() -> None:
    key = rsa.generate_private_key(65537, 1024)
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    assert certificate_problem(certificate) is None
    assert key_problem(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), certificate) is None


def test_no_file_with_a_name_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert key_problem(KEY, CERT) is None
    assert list(tmp_path.iterdir()) == []


def test_systems_without_files_in_memory_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfs_lite.transport.pem.sys.platform", "darwin")
    assert key_problem(KEY, CERT) is None
    assert key_problem(RSA_KEY, CERT) == "does not belong to the first certificate"
