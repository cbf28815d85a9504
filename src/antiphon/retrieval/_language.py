"""Words, stems and languages: the terms by which passages are found.

A term is a word without case, ending and accents. Words are Unicode's: letters, digits and the marks that belong to them. A
name like `ThreadActor` or `request_id` gives the terms of its parts, and the first also that of the whole. Scripts without
spaces give pairs of neighbouring characters.

Snowball's stemmers cut the endings. Each is made for one language, so a document has a language: it is given, or detected by
its function words. A question is short, and its language is often uncertain: each of its words gives the stems of all
languages, and a passage has the word if it has one of them.

`words.toml` lists, for three languages, synonyms and irregular forms.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import snowballstemmer  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

_STOP_WORDS: Final = {
    "en": (
        "a about all also am an and any are as at be been being but by can could did do does doing done each else for from"
        " get give got had has have having he her here him his how i if in into is it its itself just let many may me more"
        " most much must my no nor not of off on one only or other our out over please say says shall she should show so"
        " some such tell than that the their them then there these they this those to too under until up us use used uses"
        " using very was we were what when where whether which while who whom whose why will with within without would"
        " you your"
    ),
    "de": (
        "aber alle allem allen aller alles als also am an andere auch auf aus bei beim bin bis bist da dabei damit dann das"
        " dass dazu dein deine dem den denn der des dich die dies diese diesem diesen dieser dieses dir doch dort du durch"
        " ein eine einem einen einer eines er es etwa etwas euch euer für gegen gibt hab habe haben hat hatte hatten hier"
        " ich ihm ihn ihnen ihr ihre ihrem ihren im in indem ins ist ja jede jedem jeden jeder jedes jene kann kein keine"
        " keinem keinen keiner können könnte man manche mehr mein meine mich mir mit muss müssen nach nein nicht nichts noch"
        " nun nur ob oder ohne sehr sein seine seinem seinen seiner seit selbst sich sie sind so soll sollen sollte sondern"
        " sonst über um und uns unser unter viel viele vom von vor wann war waren warum was weil welche welchem welchen"
        " welcher welches wem wen wenn wer werden wessen wie wieder wieso wieviel will wir wird wo wodurch womit woher wohin"
        " wofür worauf worden wurde wurden zu zum zur zwischen"
    ),
    "fr": (
        "à afin ai ainsi alors au aucun aucune aussi autre aux avec avoir avait c car ce ceci cela celle celui ces cet cette"
        " ceux chaque chez ci comme comment d dans de depuis des deux doit doivent donc dont du elle elles en encore entre"
        " es est et étaient était été être eu eux fait faire faut il ils j je jusqu l la là laquelle le lequel les lesquels"
        " leur leurs lorsque lui m ma mais me même mes moi moins mon n ne ni non nos notre nous on ont ou où par parce pas"
        " pendant peu peut peuvent plus plusieurs pour pourquoi puis qu quand que quel quelle quelles quels qui quoi s sa"
        " sans se sera ses si sinon soit son sont sous sur t ta te tes toi ton tous tout toute toutes très tu un une vers"
        " vos votre vous y combien"
    ),
    "es": (
        "a al algo algún alguna algunas algunos ante antes aquel así aún aunque bien cada como cómo con contra cual cuál"
        " cuales cuáles cualquier cuando cuándo cuanto cuánto cuántos de debe deben del desde donde dónde dos durante e el"
        " él ella ellas ellos en entre era es esa ese eso esos esta está están este esto estos fue fueron ha hace han hasta"
        " hay la las le les lo los más me mi mientras mis mucho muy nada ni no nos nosotros nuestra nuestro o os otra otras"
        " otro otros para pero poco por porque pues puede pueden que qué quien quién quiénes se sea según ser si sí sido sin"
        " sino sobre son su sus también tan tanto te tiene tienen todo todos tras tu un una unas uno unos usted y ya yo"
    ),
    "it": (
        "a ad agli ai al alla alle allo altra altre altri altro anche ancora avere che chi ci ciascuno come con contro così"
        " cosa cui da dagli dai dal dalla dalle dallo degli dei del della delle dello deve devono di dopo dove due e è ed"
        " era erano essere fa fino fra fu gli ha hanno i il in io l la le lei li lo loro lui ma me meno mentre mi mio molto"
        " ne né negli nei nel nella nelle nello no noi non nostro o ogni oppure per perché più poi prima può possono qual"
        " quale quali quando quanta quante quanti quanto quella quelle quelli quello questa queste questi questo qui se sei"
        " senza si sia siamo sono sopra sotto sta stato su sua sue sugli sui sul sulla sulle suo suoi te ti tra tu tua tuo"
        " tutta tutte tutti tutto un una uno vi voi"
    ),
    "nl": (
        "aan al alle alleen als altijd ander andere ben bent bij daar daarom dan dat de der deze die dit doch doen dus een"
        " eens en er ga gaan ge geen gebruikt haar had heb hebben heeft hem het hier hij hoe hoeveel hun iemand iets ik in"
        " is ja je jij jou jouw jullie kan kon kunnen maar me meer men met mij mijn moet moeten na naar niet niets nog nu of"
        " om omdat onder ons onze ook op over reeds te tegen toch toen tot u uit uw van veel voor waar waarom wanneer want"
        " waren was wat we wel welk welke wie wiens wij wil word worden wordt wordt zal ze zelf zich zij zijn zo zonder zou"
    ),
    "pt": (
        "a à ao aos aquela aquele aquilo as às até cada com como contra da das de dela dele deles depois desde deve devem do"
        " dos e é ela elas ele eles em enquanto entre era essa esse esta está estão este eu foi foram há isso isto já lhe"
        " mais mas me mesmo meu minha muito na nas nem no nos nossa nosso não num numa o onde os ou outra outro para pela"
        " pelas pelo pelos pode podem pois por porque porquê qual quais qualquer quando quanto quantos quantas que quê quem"
        " são se sem ser seu seus sobre sua suas só também te tem têm ter teu toda todas todo todos tu tua um uma umas uns"
        " você vocês"
    ),
}
STOP_WORDS: Final = {code: frozenset(unicodedata.normalize("NFKC", text).split()) for code, text in _STOP_WORDS.items()}
"""Function words by language: they carry no topic."""

_LANGUAGES_OF: Final = {
    word: tuple(code for code, words in STOP_WORDS.items() if word in words)
    for word in frozenset[str]().union(*STOP_WORDS.values())
}

LANGUAGES: Final = tuple(STOP_WORDS)
"""The languages that passages may have, by ISO 639-1."""
NO_LANGUAGE: Final = "und"
"""For a text in another language, or in none: its words are not stemmed."""

_STEMMERS: Final = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "nl": "dutch",
    "pt": "portuguese",
}
_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0981-\u0983\u09bc-\u09cd\u0a3c-\u0a4d\u0abc-\u0acd"
)
"""Marks that belong to a word: accents, points and vowel signs of Hebrew, Arabic and the scripts of India."""
_WORD: Final = re.compile(rf"(?:[^\W_][{_MARKS}]*)+")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\WA-Za-z\d_]+")
_IS_MIXED: Final = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]")
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2,}")
"""Thai, Lao, Japanese and Chinese: words are not separated by spaces."""
_LONGEST: Final = 64
"""The maximum length of a word, in characters; longer text is not a word."""
_KEPT: Final = 2_000
"""The maximum length of a text whose terms are cached, in characters."""
_SAMPLE: Final = 20_000
"""Characters of a text by which its language is detected."""
_LEAST_SHARE: Final = 0.08
"""The share of function words from which on a text is in a language. Prose has 30 to 50 %, code and tables few."""


def words_in(text: str) -> Iterator[str]:
    """Yield the words of a text as they are written; characters that look alike have one form."""
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text)):
        yield match[0][:_LONGEST]


def term_set(text: str, language: str) -> frozenset[str]:
    """Return the terms of a text, without their order."""
    return _term_set(text, language) if len(text) <= _KEPT else _term_set.__wrapped__(text, language)


@lru_cache(maxsize=1_000)  # phases use the same sources, one after the other
def _term_set(text: str, language: str) -> frozenset[str]:
    return frozenset(terms_in(text, language))


def terms_in(text: str, language: str) -> list[str]:
    """Return the terms of a text, in order, including function words."""
    return [term for word in words_in(text) for term in _terms_of(word, language)]


@lru_cache(maxsize=100_000)
def _terms_of(word: str, language: str) -> tuple[str, ...]:
    """Return the terms of a word: its stem, and the stems of its parts if it is a compound."""
    if _UNSPACED.search(word):
        return tuple(word[place : place + 2].casefold() for place in range(len(word) - 1))
    terms = [stem_of(word, language)]
    if _IS_MIXED.search(word):
        terms += [stem_of(part, language) for part in _PARTS.findall(word)]
    return tuple(dict.fromkeys(terms))


@lru_cache(maxsize=100_000)
def stem_of(word: str, language: str) -> str:
    """Return the stem of a word, without case and accents."""
    folded = unicodedata.normalize("NFC", word.casefold())
    if language in _STEMMERS:
        # The German algorithm knows `ß` only as `ss`, which is what `casefold` makes of it.
        folded = _stemmer(language).stemWord(folded)
    plain = unicodedata.normalize("NFKD", folded)
    letters = "".join(letter for letter in plain if not "\u0300" <= letter <= "\u036f")
    return letters or folded


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str: ...  # noqa: N802 (its name there)


@cache
def _stemmer(language: str) -> _Stemmer:
    return cast("_Stemmer", snowballstemmer.stemmer(_STEMMERS[language]))  # pyright: ignore[reportUnknownMemberType]


@cache
def word_lists() -> Mapping[str, Any]:
    """Return the content of `words.toml`."""
    with Path(__file__).with_name("words.toml").open("rb") as file:
        return tomllib.load(file)


class RelatedStems(NamedTuple):
    """The stems of words that are related to a word."""

    forms: frozenset[str] = frozenset()
    """Of irregular forms of it, and of the noun to a verb: `took` to `take`, `arrival` to `arrive`."""
    same: frozenset[str] = frozenset()
    """Of its synonyms: `mend` to `repair`."""


@lru_cache(maxsize=10_000)
def related_to(stem: str, language: str) -> RelatedStems:
    """Return the stems of words that are related to a word; of a language without lists, none.

    The stem of a German verb depends on its ending (`passt`, `pass`), so its other forms are looked for, too.
    """
    lists = [_groups(kind, language) for kind in ("forms", "same")]
    is_listed = language != "de" or any(stem in groups for groups in lists)
    stems = {stem} if is_listed else {key for groups in lists for key in groups if is_form_of(stem, key)}
    forms = _others(lists[0], stems)
    same = _others(lists[1], stems | forms)
    return RelatedStems(forms, same | (_others(lists[0], same) - forms - stems))


def _others(groups: Mapping[str, frozenset[str]], stems: Iterable[str]) -> frozenset[str]:
    """Return the stems that are in a group with one of some stems."""
    return frozenset[str]().union(*(groups.get(stem, frozenset()) for stem in stems))


def related_stems(stems: Iterable[str], language: str) -> frozenset[str]:
    """Return the stems of all words that are related to a word with one of some stems; to a common word, none are."""
    every = (related_to(stem, language) for stem in stems if stem not in light_stems(language))
    return frozenset(other for related in every for group in related for other in group)


_SHORTEST_FORM, _ALIKE, _LEFT = 4, 5, 2
"""Letters of a stem, those that two forms of a word share, and those that may be left of the longer one."""
_ENDING: Final = re.compile("al|ed?|en|ern?|est?|et|ier|ing|ion|ir|ite|iv|ment|n|or|st|t|te|ten|tes|ung|ur")
"""The letters by which two stems of one word may differ."""
_GERMAN_ENDING: Final = re.compile(f"{_ENDING.pattern}|end")
_PARTICIPLE: Final = re.compile(r"(ab|an|auf|aus|ein|her|hin|los|mit|nach|um|vor|weg|wieder|zu|)ge(\w{3,})")


def is_form_of(stem: str, other: str, language: str = "de") -> bool:
    """Whether two stems are probably of one word: they begin alike, as `verlass` and `verlasst`, or one has `ge` within."""
    if stem == other:
        return True
    shorter, longer = (stem, other) if len(stem) <= len(other) else (other, stem)
    if stem[:_SHORTEST_FORM] == other[:_SHORTEST_FORM] and len(shorter) >= _SHORTEST_FORM:
        alike = next((place for place, letter in enumerate(shorter) if letter != longer[place]), len(shorter))
        ending = _GERMAN_ENDING if language in ("de", NO_LANGUAGE) else _ENDING  # an English `weekend` is not a `week`
        if alike == len(shorter) and ending.fullmatch(longer[alike:]):
            return True
        if alike >= _ALIKE and len(longer) - alike <= _LEFT:
            return True
    if "ge" not in longer or (participle := _PARTICIPLE.fullmatch(longer)) is None:
        return False
    plain = f"{participle[1]}{participle[2]}"  # `gebaut` is of `bau`, `ausgewaschen` of `auswasch`
    return shorter in (plain, plain.removesuffix("t"), plain.removesuffix("en"))


@cache
def light_stems(language: str) -> frozenset[str]:
    """Return the stems of common words with little meaning, and of their irregular forms."""
    stems = frozenset(stem_of(word, language) for word in word_lists()["light"].get(language, "").split())
    return stems | _others(_groups("forms", language), stems)


@cache
def _groups(kind: str, language: str) -> Mapping[str, frozenset[str]]:
    """Return the words of a list that are related to each other, by stem."""
    related: dict[str, set[str]] = {}
    for group in re.split("[;\n]", word_lists()[kind].get(language, "")):
        stems = {stem_of(word, language) for word in group.split()}
        for stem in stems:
            related.setdefault(stem, set()).update(stems - {stem})
    return {stem: frozenset(neighbours) for stem, neighbours in related.items()}


def detect_language(text: str) -> str:
    """Return the language of a text by its function words; `NO_LANGUAGE` if it has too few."""
    return _detected(text[:_SAMPLE])


@lru_cache(maxsize=1_000)
def _detected(text: str) -> str:
    words = [word.casefold() for word in words_in(text)]
    counts = Counter(code for word in words for code in _LANGUAGES_OF.get(word, ()))
    best = max(LANGUAGES, key=lambda code: counts[code])  # the first of equal ones: English
    return best if words and counts[best] / len(words) >= _LEAST_SHARE else NO_LANGUAGE


def is_stop_word(word: str, language: str) -> bool:
    """Whether a word is a function word; in a text without a language, no word is."""
    return unicodedata.normalize("NFC", word.casefold()) in STOP_WORDS.get(language, ())


def telling_words(text: str, language: str | None = None) -> list[str]:
    """Return the significant words of a text as spelled there, each once: without function words, if there are others."""
    words = list(dict.fromkeys(words_in(text)))
    code = language or detect_language(text)
    return [word for word in words if not is_stop_word(word, code)] or words


def concepts_in(text: str, language: str | None = None) -> list[tuple[str, ...]]:
    """Return the concepts of a question: for each word that is not a function word, its terms in all languages.

    Each concept comes once. If there are only function words, they are the concepts.
    """
    return list(_concepts(text, language) if len(text) <= _KEPT else _concepts.__wrapped__(text, language))


@lru_cache(maxsize=1_000)  # a question is analysed once for each of its sources
def _concepts(text: str, language: str | None) -> tuple[tuple[str, ...], ...]:
    telling = telling_words(text, language)
    parts = (part for word in telling for part in parts_of(word))
    concepts: dict[tuple[str, ...], None] = {}
    for part in parts:
        # For a script without spaces, the terms of a part are its pairs of characters; else its stem.
        stems = (_terms_of(part, code) if _UNSPACED.search(part) else (stem_of(part, code),) for code in LANGUAGES)
        concepts[tuple(dict.fromkeys(term for terms in stems for term in terms))] = None
    concepts.pop((), None)
    return tuple(concepts)


def parts_of(word: str) -> tuple[str, ...]:
    """Return a word, and its parts if it is a compound: `ThreadActor`, `Thread`, `Actor`."""
    return (word, *(_PARTS.findall(word) if _IS_MIXED.search(word) else ()))


@cache
def analysis_version() -> str:
    """Return the version of the analysis, on which the terms of a text depend; an index with another version is rebuilt.

    Snowball uses PyStemmer, the same algorithms in C, where that is installed.
    """
    packages = ("snowballstemmer", "PyStemmer")
    return " ".join([f"{_ANALYSIS}", *(f"{name} {installed}" for name in packages if (installed := _installed(name)))])


_ANALYSIS: Final = 1
"""Increase it whenever `terms_in`, or a retriever's use of it, gives other terms for the same text."""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
