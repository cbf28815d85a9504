"""Team files: a pattern from a TOML file, and the three that come with the project."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.chains import run

from antiphon.agents.tools._formats import letters_in
from antiphon.errors import ConfigError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload
from antiphon.patterns.cast import Outcome
from antiphon.patterns.options import Executor
from antiphon.patterns.peers import Peers
from antiphon.patterns.team_files import open_team
from antiphon.patterns.team_files._team_file import TeamFile
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers

EXAMPLES = Path(__file__).parents[3] / "examples"
AGENTS = """
[[agents]]
name = "ada"
role = "leader"
[[agents]]
name = "bob"
"""


def desk(worker: str = "bob", tool: str = "list_files") -> str:
    script = f'script = [{{ name = "List", worker = "{worker}", tool_name = "{tool}" }}]'
    return f'[[agents]]\nname = "desk"\nrole = "manager"\nmanages = ["bob"]\nplans = "script"\n{script}\n'


def team_file(folder: Path, text: str) -> Path:
    path = folder / "team.toml"
    path.write_text(text)
    return path


def done(path: Path, task: str, ledger: Ledger | None = None, **more: Any) -> Outcome:
    async def main() -> Outcome:
        async with open_team(path, ledger, **more) as team:
            return await team.run(task, thread_id="t")

    return run(main())


# ---------------------------------------------------------------- the three that come along


@pytest.mark.slow
def test_the_analysts_give_the_sums_of_the_table() -> None:
    folder = EXAMPLES / "analyse_csv"
    outcome = done(folder / "team.toml", "How are the sales?")
    assert outcome.status == "completed"
    (by_city,) = [line for line in (outcome.response or "").splitlines() if line.startswith("- revenue by city: ")]
    said = dict(pair.split(" ") for pair in by_city.removeprefix("- revenue by city: ").split(", "))
    sums: dict[str, Decimal] = {}
    for line in (folder / "sales.csv").read_text().splitlines()[1:]:
        _, city, _, _, revenue = line.split(",")
        sums[city] = sums.get(city, Decimal(0)) + Decimal(revenue or 0)
    assert {city: Decimal(number) for city, number in said.items()} == sums


@pytest.mark.slow
def test_the_clerk_finds_the_letters_about_orders_and_those_that_cannot_wait() -> None:
    folder = EXAMPLES / "triage_mailbox"
    ledger = MemoryLedger()
    outcome = done(folder / "team.toml", "What is in the mailbox?", ledger)
    orders, alarms = (json.loads(line.partition(": ")[2]) for line in (outcome.response or "").splitlines())
    every = {each["number"]: each for each in letters_in((folder / "inbox.mbox").read_bytes())}
    assert orders == [every[2], every[7]]
    assert alarms == [every[1], every[5]]


def test_the_editor_names_every_problem_of_the_pages() -> None:
    outcome = done(EXAMPLES / "review_markdown" / "team.toml", "Review the pages.")
    assert outcome.status == "completed"
    for page, line, what in (
        ("black.md", 9, "the code block that begins here does not end"),
        ("green.md", 7, "something is left to do"),
        ("green.md", 9, "heading 'Second infusion' is 2 levels below"),
        ("index.md", 3, "link to white.md leads nowhere"),
        ("index.md", 6, "image house.png has no description"),
    ):
        text = (EXAMPLES / "review_markdown" / "pages" / page).read_text()
        assert len(text.splitlines()) >= line
        assert f"{page}, line {line}: {what}" in (outcome.response or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["analyse_csv", "triage_mailbox", "review_markdown"])
def test_a_team_that_is_asked_the_same_again_gives_what_is_recorded(name: str) -> None:
    ledger = MemoryLedger()

    async def rows() -> int:
        return len([record async for record in ledger.read("t")])

    first = done(EXAMPLES / name / "team.toml", "How is it?", ledger)
    before = run(rows())
    assert done(EXAMPLES / name / "team.toml", "How is it?", ledger) == first
    assert run(rows()) == before


@pytest.mark.slow
def test_teams_work_on_another_folder_whatever_its_files_are_called(tmp_path: Path) -> None:
    (tmp_path / "tea.csv").write_text("town;tins\nOslo;1\nOslo;2.5\nRome;4\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "all.mbox").write_bytes((EXAMPLES / "triage_mailbox" / "inbox.mbox").read_bytes())
    outcome = done(EXAMPLES / "analyse_csv" / "team.toml", "How are the sales?", files=tmp_path)
    assert outcome.response == "- tins by town: Rome 4, Oslo 3.5"
    outcome = done(EXAMPLES / "triage_mailbox" / "team.toml", "What is in the mailbox?", files=tmp_path)
    assert outcome.response == done(EXAMPLES / "triage_mailbox" / "team.toml", "What is in the mailbox?").response


# ---------------------------------------------------------------- what a file says


@pytest.mark.parametrize(("name", "pattern"), [("options", Executor), ("peers", Peers), ("teams", Team), ("workers", Workers)])
def test_each_pattern_can_be_named(name: str, pattern: type, tmp_path: Path) -> None:
    path = team_file(tmp_path, f'pattern = "{name}"\nmodel = "scripted"\n{AGENTS}')
    assert type(open_team(path)) is pattern


def test_a_file_says_how_a_manager_works(tmp_path: Path) -> None:
    """AF-056: also whether its syntheses are broadcast."""
    more = '[[agents]]\nname = "desk"\nrole = "manager"\nmanages = ["bob"]\nplans = "whole"\nis_global = false\n'
    team = open_team(team_file(tmp_path, f'pattern = "teams"\nmodel = "scripted"\n{AGENTS}{more}'))
    assert isinstance(team, Team)
    desk = team.roster.managers["desk"]
    assert (desk.workers, desk.plans, desk.script, desk.is_global) == (("bob",), "whole", None, False)


def test_a_leader_with_options_answers_and_may_call_the_others(tmp_path: Path) -> None:
    script = """
[[rules]]
when = "^ask bob"
tools = ["bob"]
turns = [{ calls = [{ tool = "bob", arguments = { task = "say it" } }] }, { text = "bob says: {result}" }]
[[rules]]
turns = [{ text = "it" }]
"""
    (tmp_path / "script.toml").write_text(script)
    path = team_file(tmp_path, f'pattern = "options"\nmodel = "scripted:script.toml"\n{AGENTS}')
    assert done(path, "ask bob").response == "bob says: it"


def test_a_model_that_is_named_counts_before_the_file(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    agents = AGENTS.replace('name = "ada"', 'name = "ada"\nmodel = "openai:gpt-4o"')
    path = team_file(tmp_path, f'pattern = "peers"\nmodel = "openai:gpt-4o"\n{agents}')
    outcome = done(path, "Hello.", ledger, model="scripted")
    assert "Scripted answer" in (outcome.response or "")


def test_a_tool_without_a_grant_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "script.toml").write_text(
        'turns = [{ calls = [{ tool = "read_file", arguments = { path = "secret.txt" } }] }, { text = "{result}" }]'
    )
    path = team_file(tmp_path, f'pattern = "peers"\nmodel = "scripted:script.toml"\nfiles = "."\n{AGENTS}')
    assert "secret" not in str(done(path, "Read it.").response)


def test_a_grant_may_be_for_some_arguments_only(tmp_path: Path) -> None:
    for name in ("open.txt", "closed.txt"):
        (tmp_path / name).write_text(f"this is {name}")
    calls = "".join(
        f'{{ calls = [{{ tool = "read_file", arguments = {{ path = "{name}" }} }}] }}, ' for name in ("open.txt", "closed.txt")
    )
    (tmp_path / "script.toml").write_text(f'turns = [{calls}{{ text = "{{result_1}} / {{result_2}}" }}]')
    grant = '[[grants]]\nagent = "ada"\ntool = "read_file"\nwhere = { properties = { path = { const = "open.txt" } } }\n'
    path = team_file(tmp_path, f'pattern = "peers"\nmodel = "scripted:script.toml"\nfiles = "."\n{AGENTS}{grant}')
    said = str(done(path, "Read them.").response)
    assert "this is open.txt" in said
    assert "this is closed.txt" not in said


@pytest.mark.parametrize("pattern", ["options", "peers", "teams", "workers"])
def test_a_spent_budget_stops_a_task(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "script.toml").write_text(
        'turns = [{ calls = [{ tool = "calculator", arguments = { expression = "1+1" } }] }, { text = "two" }]'
    )
    agents = AGENTS.replace('role = "leader"', 'role = "leader"\ntools = ["calculator"]')
    text = f'pattern = "{pattern}"\nmodel = "scripted:script.toml"\n[budget]\nrequests = 1\n{agents}'
    outcome = done(team_file(tmp_path, text), "Add.")
    assert (outcome.status, outcome.error_code) == ("stopped", "BUDGET_EXCEEDED")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pattern = 3", "pattern: "),
        ('pattern = "choir"\n' + AGENTS, "pattern: "),
        ('pattern = "peers"\n[[agents]]\nname = "ada"', 'one agent has role = "leader"'),
        ('pattern = "peers"\n' + AGENTS + AGENTS, "two agents are called 'ada'"),
        ('pattern = "peers"\ntypo = 1\n' + AGENTS, "typo: there is no key 'typo'; there are 'about', 'agents', "),
        ('pattern = "peers"\naprovals = []\n' + AGENTS, "aprovals: there is no key 'aprovals'; is it 'approvals'?"),
        ('pattern = "peers"\n' + AGENTS + "tolls = []", "agents.1.tolls: there is no key 'tolls'; is it 'tools'?"),
        (
            'pattern = "peers"\n' + AGENTS + "[mcp.x]\nurl = 'http://x'\nrequire = true",
            "mcp.x.require: there is no key 'require'",
        ),
        ('pattern = "peers"\napprovals = ["calcualtor"]\n' + AGENTS, "an approval rule names tool 'calcualtor'"),
        ('pattern = "peers"\napprovals = ["calcualtor"]\n' + AGENTS, "; is it 'calculator'?"),
        (
            'pattern = "peers"\napprovals = ["x"]\n' + AGENTS + "[mcp.shop]\nurl = 'http://x'",
            "an approval rule names tool 'x'",
        ),
        ('pattern = "peers"\nfiles = "."\n' + AGENTS + 'tools = ["read_fiel"]', "agent 'bob' names tool 'read_fiel', and"),
        ('pattern = "peers"\nfiles = "."\n' + AGENTS + 'tools = ["read_fiel"]', "; is it 'read_file'?"),
        (
            'pattern = "peers"\nfiles = "."\n' + AGENTS + '[[grants]]\nagent = "bob"\ntool = "read_fiel"',
            "the grant for agent 'bob' names tool 'read_fiel', and",
        ),
        ('pattern = "peers"\n' + AGENTS + '[[grants]]\nagent = "bbo"\ntool = "calculator"', "; is it 'bob'?"),
        ('pattern = "teams"\nfiles = "."\n' + AGENTS + desk(tool="list_flies"), "; is it 'list_files'?"),
        ('pattern = "teams"\nfiles = "."\n' + AGENTS + desk(worker="bbo"), "names 'bbo', who is no worker"),
        (
            'pattern = "teams"\n' + AGENTS + 'manages = ["eve"]',
            "names 'eve', and there is no such agent; there are 'ada', 'bob'",
        ),
        ('pattern = "peers"\nfiles = "nowhere"\n' + AGENTS, "nowhere is no folder"),
        ('pattern = "peers"\n' + AGENTS + '[[grants]]\nagent = "eve"\ntool = "calculator"', "a grant names 'eve'"),
        ('pattern = "peers"\n' + AGENTS + "[mcp.x]\n", "a url or a command"),
        ("pattern =", "not TOML"),
        ("pattern = " + "[" * 100_000, "nested too deeply"),
        (f'pattern = "peers"\nfiles = "{"x" * 3000}"\n' + AGENTS, "is no folder"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, says: str, tmp_path: Path) -> None:
    path = team_file(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        open_team(path)
    assert says in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        open_team(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/team.toml")), ids=lambda path: path.parent.name)
def test_the_examples_say_what_they_are_for(path: Path) -> None:
    assert TeamFile.read(path).about


def test_everything_a_team_does_is_in_its_thread() -> None:
    ledger = MemoryLedger()
    done(EXAMPLES / "analyse_csv" / "team.toml", "How are the sales?", ledger)

    async def called() -> set[str]:
        payloads = [record.message.payload async for record in ledger.read("t") if record.message.lane == "talk"]
        return {each.option_name for each in payloads if isinstance(each, OptionCallPayload)}

    assert {"assign_task", "csv_columns", "csv_totals"} <= run(called())
