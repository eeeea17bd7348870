"""Database addresses: whatever the form, the password is found and never shown."""

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from config.database_address import address_secrets, password_file, shown_address
from jobs.payload.redact import MARK, Redactor

PASSWORD = "s3cr/et@can ary%?&x"

FORMS = {
    "encoded": f"postgresql+psycopg://me:{quote(PASSWORD, safe='')}@db.example.org:5432/jobs?sslmode=require",
    "as it is": f"postgresql+psycopg://me:{PASSWORD}@db.example.org/jobs",
    "slashes": "postgresql://me:can/ary/pass@db/jobs",
    "parameter": f"postgresql://me@db/jobs?sslmode=require&password={quote_plus(PASSWORD)}",
    "key's password": f"postgresql://db/jobs?sslpassword={quote(PASSWORD, safe='')}",
    "encoded name": f"postgresql://db/jobs?p%61ssword={quote(PASSWORD, safe='')}",
    "twice": "postgresql://me:canary-one@db/jobs?password=canary-two",
    "list": "host=db user=me password='s3cr/et\\'can ary' dbname=jobs",
    "bare list": "host=db password=canary-pass sslpassword = canary-too",
    "list that looks like an address": "host=db password='canary-a://canary-b'",
    "no form": "canary-pass",
    "one slash": "postgresql:/me:canary-pass@db",
}


@pytest.mark.parametrize("form", FORMS)
def test_no_part_of_a_password_is_shown(form: str) -> None:
    shown = shown_address(FORMS[form])
    assert MARK in shown
    for piece in ("s3cr", "et@", "et'", "can", "ary", "%40", "%2F"):
        assert piece not in shown
    told = Redactor(address_secrets(FORMS[form]))(f"cannot use {FORMS[form]}")
    assert "s3cr" not in told
    assert "canary" not in told


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:////srv/a:b@c/scheduler.db",
        "postgresql+psycopg://me@db.example.org:5432/jobs?sslmode=require&application_name=trainer",
        "postgresql://[::1]:5432/jobs",
        "host=db user=me dbname='my jobs'",
        "",
    ],
)
def test_an_address_without_a_secret_is_shown_whole(address: str) -> None:
    assert shown_address(address) == address
    assert address_secrets(address) == set()


def test_the_rest_of_an_address_stays_readable() -> None:
    assert shown_address("postgresql://me:pw@db:5432/jobs?password=x&sslmode=require") == (
        "postgresql://me:[secret]@db:5432/jobs?password=[secret]&sslmode=require"
    )
    assert shown_address("host=db password='a b' user=me") == "host=db password=[secret] user=me"


def test_a_file_of_passwords_is_found() -> None:
    assert password_file("postgresql://db/x?passfile=%2Fetc%2Fpgpass&sslmode=require") == "/etc/pgpass"
    assert password_file("host=db passfile='/etc/pg pass'") == "/etc/pg pass"
    assert password_file("postgresql://db/x") == ""


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=8, max_size=30))
def test_any_password_in_any_form_is_found(password: str) -> None:
    assume(password.strip() == password)
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    for address in (
        f"postgresql://me:{quote(password, safe='')}@db/jobs",
        f"postgresql://me:{password}@db/jobs",
        f"postgresql://db/jobs?password={quote(password, safe='')}",
        f"postgresql://db/jobs?a=b&sslpassword={quote_plus(password)}",
        f"host=db password='{quoted}'",
    ):
        assert password not in shown_address(address)
        assert password not in Redactor(address_secrets(address))(f"no server at {address}, said <{password}>")
