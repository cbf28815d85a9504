"""The samples are all there, and each is of a dialect and a kind."""

from tests.providers.samples import DIALECTS, FOLDER, SAMPLES, samples


def test_every_file_is_in_the_manifest() -> None:
    files = {path for path in FOLDER.iterdir() if path.name != "manifest.json"}

    assert {each.path for each in SAMPLES} == files
    assert len(SAMPLES) == len(files)


def test_every_dialect_has_requests_and_a_stream() -> None:
    for dialect in DIALECTS:
        assert len(samples(dialect, "request")) == 2
        assert len(samples(dialect, "stream")) == 1
    assert {each.dialect for each in samples(kind="response")} == set(DIALECTS) - {"pydantic-ai"}


def test_a_body_may_be_changed_by_its_test() -> None:
    sample = SAMPLES[0]

    sample.body["messages"].clear()

    assert sample.body["messages"]
