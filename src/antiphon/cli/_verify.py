"""`antiphon verify`, `doctor`, `backup`, `key`: check a ledger, prove and copy it, and its keys."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import orjson
import typer

from antiphon import service
from antiphon.cli._input import read_file
from antiphon.cli._ledger import JsonOption, LedgerOption, MaybeThreadArgument, with_ledger
from antiphon.cli._output import ForceOption, deliver, has_keys, print_json
from antiphon.cli._screen import bar, fail, note, open_console, print_table, wheel
from antiphon.messages._json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Verification
    from antiphon.ledger._encryption import SigningKey


SignerOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--signer", metavar="PUB", help="With --heads: the public key file that must verify their signature."),
]


def verify(
    thread: MaybeThreadArgument = None,
    *,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Heads that were saved earlier: also detect truncated threads."),
    ] = None,
    save_heads: Annotated[
        Path | None,
        typer.Option(
            "--save-heads", metavar="FILE", help="If the check passes, write the heads to this file, for a later --heads."
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign", metavar="KEY", help="With --save-heads: sign them with this key; see antiphon key make --signing."
        ),
    ] = None,
    signer: SignerOption = None,
    force: ForceOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Check every hash, position and index of a ledger. Exit 1 if anything was altered."""
    if (sign is not None and save_heads is None) or (signer is not None and heads is None):
        fail("--sign goes with --save-heads, and --signer with --heads", code=2)
    signing = None if sign is None else _signing_key(sign)
    proofs = () if heads is None else read_heads(heads, signer)
    verification, present = with_ledger(ledger, partial(_examine, thread=thread, proofs=proofs))
    if for_programs:
        print_json(verification)
    else:
        _print(verification)
    if not verification.is_whole:
        raise typer.Exit(1)
    if save_heads is not None:
        write_heads(present, save_heads, force=force, signing=signing)


async def _examine(ledger: Ledger, *, thread: str | None, proofs: tuple[Head, ...]) -> tuple[Verification, tuple[Head, ...]]:
    """Return what was found, and the heads as they were before: only heads that were checked are saved."""
    gone = await _gone(ledger, thread, proofs)
    if gone is not None:
        return gone, ()
    from antiphon.ledger import heads_of  # noqa: PLC0415 (only where a ledger is used)

    present = await heads_of(ledger)
    with bar("verifying") as progress:
        verification = await ledger.verify(thread, heads=proofs, progress=progress)
    return verification, present if thread is None else tuple(head for head in present if head.thread_id == thread)


async def _gone(ledger: Ledger, thread: str | None, proofs: tuple[Head, ...]) -> Verification | None:
    """Return the damage, if a thread that the heads prove does not exist any more."""
    from antiphon.ledger import Damage, Verification  # noqa: PLC0415 (only where a ledger is used)

    heads = [head for head in proofs if head.thread_id == thread]
    if not heads or await ledger.thread(heads[0].thread_id) is not None:
        return None
    return Verification(0, 0, (Damage(thread, 1, f"it had {heads[0].seq} messages once, and is gone"),))


def _print(verification: Verification) -> None:
    looked_at = f"threads: {verification.threads}, messages: {verification.messages}"
    if verification.is_whole:
        open_console().print(f"{looked_at}; no damage found", soft_wrap=True)
        return
    rows = [
        (damage.thread_id or "", "" if damage.seq is None else str(damage.seq), damage.what) for damage in verification.damages
    ]
    print_table(open_console(), ("thread", "seq", "damage"), rows)
    note(f"{looked_at}; damaged: {len(rows)}. What comes before a damage in its thread is good; a backup may have the rest.")


def doctor(
    *,
    adopt_redaction: Annotated[
        bool,
        typer.Option("--adopt-redaction", help="First make the redaction rules of this command the rules of the ledger."),
    ] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Check the settings and the environment of a ledger. Exit 1 if something should be changed."""
    if adopt_redaction:
        with_ledger(ledger, service.adopt_redaction)
    diagnoses = with_ledger(ledger, service.diagnose)
    if for_programs:
        print_json([{"what": diagnosis.what, "found": diagnosis.value, "advice": diagnosis.advice} for diagnosis in diagnoses])
    else:
        print_table(
            open_console(),
            ("", "what", "found"),
            [("ok" if diagnosis.is_good else "!", diagnosis.what, diagnosis.value) for diagnosis in diagnoses],
        )
    for diagnosis in diagnoses if not for_programs else ():
        if diagnosis.advice is not None:
            note(f"{diagnosis.what}: {diagnosis.advice}")
    if not all(diagnosis.is_good for diagnosis in diagnoses):
        raise typer.Exit(1)


def write_heads(heads: Iterable[Head], output: Path, *, force: bool = False, signing: SigningKey | None = None) -> None:
    """Write heads to a file; `signing` signs them."""
    rows = [{"thread_id": head.thread_id, "seq": head.seq, "hash": head.hash} for head in heads]
    signed = {} if signing is None else {"signer": signing.public, "signature": signing.sign(write(rows))}
    text = write({"heads": rows, **signed} if signed else rows, orjson.OPT_INDENT_2) + b"\n"
    is_signed_heads, is_heads = has_keys("heads", "signature"), has_keys("thread_id", "seq", "hash")
    deliver(text, output, kind=lambda value: is_signed_heads(value) or is_heads(value), force=force)


def read_heads(path: Path, signer: Path | None = None) -> tuple[Head, ...]:
    """Read a file of heads, and check its signature, if it has one; with `signer`, it must be of that key."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where a ledger is used)

    file = read_file(path)
    rows = _signed_rows(file.name, file.value, signer)
    heads: list[Head] = []
    for row in cast("list[Any]", rows if isinstance(rows, list) else [rows]):
        match row:
            case {"thread_id": str(name), "seq": int(seq), "hash": str(link)}:
                heads.append(Head(name, seq, link))
            case _:
                fail(f"{file.name}: not a file of heads, as `antiphon verify --save-heads` writes it")
    return tuple(heads)


def _signed_rows(name: str, value: Any, signer: Path | None) -> Any:
    """Return the rows of a file of heads, after its signature was checked."""
    from antiphon.ledger._encryption import is_signed  # noqa: PLC0415 (only where a ledger is used)

    match value:
        case {"heads": list(), "signer": str(public), "signature": str(signature)}:
            rows = cast("list[Any]", value["heads"])
            if not is_signed(write(rows), signature, public):
                fail(f"{name}: the signature is not that of these heads; they were altered after they were signed")
            if signer is None:
                note(f"signed by {public}; --signer PUB checks whose key that is")
            elif _public_key(signer) != public:
                fail(f"{name}: signed by {public}, and not by the key of {signer}")
            return rows
        case _ if signer is not None:
            return fail(f"{name}: not signed; `antiphon verify --save-heads FILE --sign KEY` signs")
        case _:
            return value


def _public_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        return fail(f"{path}: {getattr(exc, 'strerror', None) or 'not text'}", code=2)


def _signing_key(path: Path) -> SigningKey:
    from antiphon.ledger._encryption import SigningKey  # noqa: PLC0415 (only where a ledger is used)

    try:
        return SigningKey.from_file(path)
    except ValueError as exc:
        return fail(str(exc), code=2)


# ---------------------------------------------------------------- keys


key = typer.Typer(
    name="key", no_args_is_help=True, rich_markup_mode=None, help="Create a key file, or change the master key of a ledger."
)


@key.command()
def make(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    *,
    signing: Annotated[
        bool, typer.Option("--signing", help="A key that signs heads; its public part is written to FILE.pub.")
    ] = False,
) -> None:
    """Create a key file that only you can read: a master key, for ANTIPHON_KEY_FILE, or a key for signatures."""
    from antiphon.ledger import MasterKey  # noqa: PLC0415 (only where a ledger is used)
    from antiphon.ledger._encryption import SigningKey  # noqa: PLC0415 (only where a ledger is used)

    _write_new(file, SigningKey.generate() if signing else MasterKey.generate(), mode=0o600)
    if signing:
        _write_new(file.with_name(f"{file.name}.pub"), SigningKey.from_file(file).public, mode=0o644)
        note(f"keep {file} secret, and {file}.pub where the heads are checked")
    else:
        master = MasterKey.from_file(file)
        note(f"master key {master.id}; keep a copy of {file} elsewhere: without it, encrypted threads cannot be read")


def _write_new(path: Path, text: str, *, mode: int) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
    except FileExistsError:
        fail(f"{path} is there already; a key is written to a new file", code=2)
    except OSError as exc:
        fail(f"{path}: {exc.strerror or exc}; check the path", code=2)


@key.command()
def rotate(
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The file of the new master key: see antiphon key make.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Encrypt the keys of all encrypted threads with a new master key. ANTIPHON_KEY_FILE names the current one."""
    count = with_ledger(ledger, partial(_rotate, path=new))
    note(f"re-encrypted {count} keys; from now on, set ANTIPHON_KEY_FILE={new}")


async def _rotate(ledger: Ledger, *, path: Path) -> int:
    from antiphon.ledger import MasterKey  # noqa: PLC0415 (only where a ledger is used)

    try:
        new = MasterKey.from_file(path)
    except ValueError as exc:
        fail(str(exc), code=2)
    if await ledger.keys.status() is None:
        fail("the ledger is not encrypted: there are no keys to wrap", code=2)
    return await ledger.keys.rotate(new)


def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it must not exist.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Write a consistent copy of a ledger to a new file."""
    if not os.path.isdir(out.parent):
        fail(f"{out}: there is no folder {str(out.parent)!r}; make it, or check the path", code=2)
    with wheel("copying"):
        with_ledger(ledger, partial(_copy, out=out))
    note(f"{out}: {service.file_size(out.stat().st_size)}; open it with --ledger sqlite:///{out}")


async def _copy(ledger: Ledger, *, out: Path) -> None:
    from antiphon.ledger._values import Maintained  # noqa: PLC0415 (only where a ledger is used)

    if not isinstance(ledger, Maintained):
        fail(f"{out}: this ledger has no file to copy", code=2)
    try:
        await ledger.backup(out)
    except (OSError, ValueError) as exc:
        fail(f"{out}: {exc.strerror}" if isinstance(exc, OSError) and exc.strerror else str(exc), code=2)
