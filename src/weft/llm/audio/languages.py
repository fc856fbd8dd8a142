"""The languages of Whisper, by their codes."""

from __future__ import annotations

_CODES = (
    "en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese "
    "pt=portuguese tr=turkish pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian "
    "id=indonesian hi=hindi fi=finnish vi=vietnamese he=hebrew uk=ukrainian el=greek ms=malay "
    "cs=czech ro=romanian da=danish hu=hungarian ta=tamil no=norwegian th=thai ur=urdu "
    "hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh sk=slovak "
    "te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian "
    "kn=kannada et=estonian mk=macedonian br=breton eu=basque is=icelandic hy=armenian "
    "ne=nepali mn=mongolian bs=bosnian kk=kazakh sq=albanian sw=swahili gl=galician mr=marathi "
    "pa=punjabi si=sinhala km=khmer sn=shona yo=yoruba so=somali af=afrikaans oc=occitan "
    "ka=georgian be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic yi=yiddish lo=lao "
    "uz=uzbek fo=faroese ht=haitian_creole ps=pashto tk=turkmen nn=nynorsk mt=maltese "
    "sa=sanskrit lb=luxembourgish my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese "
    "tt=tatar haw=hawaiian ln=lingala ha=hausa ba=bashkir jw=javanese su=sundanese "
    "yue=cantonese"
)
NAMES = {
    code: name.replace("_", " ") for code, name in (item.split("=") for item in _CODES.split())
}
"""The name of each language in English, by its code."""
_OTHERS = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb",
    "pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si",
    "castilian": "es", "mandarin": "zh",
}  # fmt: skip
_BY_NAME = {name: code for code, name in NAMES.items()} | _OTHERS


def code_of(language: str | None) -> str | None:
    """The code of a language by its code, with or without a region, or its name; None for None and
    for "auto". What is not known comes back as it is."""
    if language is None or language.strip().lower() in ("", "auto"):
        return None
    low = language.strip().lower()
    return _BY_NAME.get(low, low if low in NAMES else low.partition("-")[0])
