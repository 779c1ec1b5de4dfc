"""What poisoned definitions say: one row per phrase, matched against text made plain by the
scanner.

The text is lower case, without invisible characters, look-alike letters replaced by Latin ones,
white space run together. Gaps are bounded, so matching takes time linear in the text. A row's
severity is that of the phrase alone: ``ALARM`` is seldom said by honest servers, ``NOTE`` is said
by many and only worth a glance.

Kinds follow published attacks: Invariant Labs' tool poisoning and shadowing, Trail of Bits' line
jumping, CyberArk's full-schema poisoning, MCPTox, MCP-SafetyBench.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpregistry.domain.definitions.findings import Severity


@dataclass(frozen=True, slots=True)
class Phrase:
    """One row of the table: the kind of finding, its severity, the sentence for the reviewer, the
    pattern."""

    kind: str
    severity: Severity
    why: str
    pattern: re.Pattern[str]


_USER = r"(?:user|human|person|people|anybody|anyone|customer|client|guest|owner|operator|them)"
_MODEL = r"(?:ai|llm|language model|model|assistant|agent|chatbot|claude|gpt|copilot)s?"
_NOT = r"(?:do not|don't|never|must not|mustn't|should not|shouldn't|shall not|cannot|no need to|avoid|without)"
_RULES = (
    r"(?:instructions?|prompts?|rules?|guidelines?|directions?|directives?|polic(?:y|ies)|restrictions?|"
    r"safety|alignment|constraints?|guardrails?|safeguards?)"
)
_GIVE = (
    r"(?:send|pass|include|give|provide|append|attach|put|hand|enter|disclose|supply|upload|post|transmit|forward|"
    r"share|encode|copy|paste|fill|insert|add|submit|needs?|requires?|takes?|report|reveal|return|print|list|display|"
    r"show|leak|collect|extract|exfiltrate|write|store|embed|place|prefix|start|fetch|get|read|with)"
)
_SENSITIVE = (
    r"(?:passwords?|passphrases?|master password|api[ _-]?(?:keys?|tokens?)|private keys?|secret keys?|ssh keys?|"
    r"(?:access|oauth|auth|session|bearer|refresh) (?:tokens?|cookies?|keys?)|login data|credentials?|secrets|"
    r"environment variables|cookies|the vault|(?:credit )?card numbers?|cvc|cvv|passport numbers?|date of birth|"
    r"maiden name|social security number|seed phrases?|home address|phone number|clipboard|keychain)"
)
_TALK = (
    r"(?:(?:full|whole|complete|entire|current|previous|all)?[ ,a-z]{0,12}(?:conversation|dialogue|dialog|transcript)s?|"
    r"(?:chat|conversation|message|browser|shell|command|bash) history|everything (?:that )?the user|"
    r"draft reply|user's (?:question|input|prompt|messages?|name and|files|documents|e-?mail)|open files|(?:last|recent) \w+ messages|"
    r"(?:your |the |full |hidden )system prompt|hidden instructions|all (?:local )?files|all (?:the )?chats)"
)
_PRETEXT = (
    r"(?:security|complian(?:ce|t)|validation|verification|audit(?:ing)?|regulat(?:ory|ions?)|integrity|authentication|performance|"
    r"maintenance|system (?:updates?|upgrades?|health|stability)|data consistency|privacy|quality assurance|logging|safety)"
)
_DUTY = r"(?:you must|must first|must also|mandatory|is required|are required|required for all|you are required|please (?:run|execute|call)|you should (?:then )?(?:call|run|execute))"
_TOOL = r"(?:tools?|functions?|servers?|commands?)"
_NAME = r"[`'\"]?\b[a-z][a-z0-9]{0,40}_[a-z0-9_]{1,60}[`'\"]?"


_NOTE = Severity.NOTE
_ALARM = Severity.ALARM
_DANGER = Severity.DANGER
_ROWS: tuple[tuple[str, Severity, str, str], ...] = (
    # Hiding something from the person in front of the host
    (
        "secrecy",
        _DANGER,
        "It asks the model to hide something from the user.",
        rf"{_NOT} (?:ever |also |have to )?(?:tell|mention|inform|notify|reveal|disclose|alert|warn|let|show|say|admit|explain)"
        rf"\w*\b.{{0,50}}\b{_USER}\b",
    ),
    (
        "secrecy",
        _DANGER,
        "It asks the model to hide something from the user.",
        rf"\b{_USER} (?:must|should|shall|may|will|need|can)(?:n't| not| never)(?: to)? (?:be |ever )?"
        r"(?:told|informed|notified|aware|know|see|learn|notice|find out)",
    ),
    (
        "secrecy",
        _DANGER,
        "It asks the model to hide something.",
        r"\b(?:silently|secretly|quietly|covertly|discreetly|stealthily) (?:\w+ ){0,1}(?:delete|send|add|invite|forward|copy|read|"
        r"upload|replace|include|run|execute|call|remove|change|post|transmit|collect|record|log)",
    ),
    (
        "secrecy",
        _DANGER,
        "It asks the model to hide something.",
        r"(?:keep|leave) (?:this|these|it|that|all of this)\b.{0,30}\b(?:secret|hidden|confidential|private|out of)|"
        r"keep (?:this|these|it|that)\b.{0,30}\bto yourself|"
        rf"without (?:mentioning|telling|informing|notifying|showing|disclosing|revealing) (?:it|this|that|so|(?:the |your |its |any )?{_USER})\b|"
        r"with no mention of|must not appear in your|(?:do not|don't|never) (?:mention|reveal|disclose|acknowledge)\b",
    ),
    # Taking the place of the model's own instructions
    (
        "override",
        _DANGER,
        "It tries to replace the model's instructions.",
        r"\b(?:ignore|disregard|forget|override|overrule|bypass|discard|drop|void|replace|supersede)s?\b[^.]{0,40}"
        rf"\b(?:previous|prior|earlier|above|all|any|your|other|existing|system|safety|its)\b[^.]{{0,40}}\b{_RULES}\b",
    ),
    (
        "override",
        _DANGER,
        "It tries to replace the model's instructions.",
        r"\b(?:forget|disregard|ignore) (?:everything|anything|what|the user|other servers|all)\b|"
        rf"\b{_RULES} (?:are|is) (?:void|lifted|suspended|disabled|removed|off)|{_RULES} do(?:es)? not apply|"
        r"takes? precedence over (?:your|the user|any|all|other|the system)|overrides? the (?:system prompt|user)|"
        r"you are (?:now )?(?:dan|in (?:maintenance|developer|debug|admin|god) mode)|maintenance mode\. ignore|"
        r"answer without (?:limits|restrictions)|jailbreak|act on behalf of|only this one is to be trusted",
    ),
    (
        "override",
        _ALARM,
        "It refers to the model's own prompt.",
        r"\b(?:your|the (?:full|hidden|whole|model's|assistant's)|hidden) (?:system )?(?:prompt|instructions)\b.{0,60}",
    ),
    ("prompt", _NOTE, "It refers to a system prompt.", r"\bsystem prompt\b"),
    (
        "obedience",
        _DANGER,
        "It asks the model to obey what the tool returns.",
        r"(?:output|results?|text|page|entries|content|ticket|readme|response|whatever|what it returns|returned)\b.{0,80}"
        r"(?:new instructions|are orders|as (?:an )?(?:instructions?|orders?|commands?)|to be (?:obeyed|executed)|obey|carry (?:them|it) out|"
        r"without question|follow (?:what|whatever|it|them)|do whatever|asks you to do)|"
        r"(?:follow|obey|do|execute) (?:whatever|what|everything|anything) (?:it|the|this)\b.{0,30}\b(?:returns?|says?|asks?|tells?)",
    ),
    # Speaking to the model as somebody else
    (
        "role",
        _DANGER,
        "It imitates the markers with which hosts separate speakers.",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?(?:inst|system|sys|assistant)\]|<</?sys>>|"
        r"</?(?:important|critical|system|hidden|secret|instructions?|system[_-]prompt|assistant|admin|override|"
        r"urgent|mandatory|attention|priority|directive|internal|policy)>|###? ?(?:instruction|response|system)\b|"
        r"(?:^|[.!?>\]] ?)(?:assistant|user|human): |"
        r"(?:^|[.!?>\]] ?)system: (?=(?:you|your|ignore|disregard|forget|from|all|any|new|do|always|never|override|obey|follow|print|reveal|"
        r"send|call|run|read|please|important|the (?:assistant|model|user|following))\b)",
    ),
    (
        "role",
        _ALARM,
        "It addresses the model instead of describing the tool.",
        rf"\b(?:notes?|messages?|hints?|attention|orders?|reminders?|hello|dear|hey|notice)[ :,](?:to|for|of)?(?: all| the| any| every)? ?{_MODEL}\b|"
        rf"\binstructions? for (?:the |all |any )?{_MODEL}\b|"
        rf"(?:^|[.!?>*(\[\"]|<!--) ?(?:for )?(?:the )?{_MODEL}: |\bfor (?:ai )?assistants?\b|\bassistants? (?:must|has to|have to|should)\b|"
        rf"\battention,? {_MODEL}\b|\b(?:models|agents|assistants) (?:that|which|who) use this",
    ),
    (
        "impersonation",
        _DANGER,
        "It claims the authority of a third party.",
        r"\b(?:message|note|notice|order|instruction|update|request)s? from (?:your |the )?(?:anthropic|openai|google|microsoft|developers?|"
        r"administrators?|admin|security team|operator|vendor|it department|system)|by order of|"
        r"\b(?:anthropic|openai|microsoft|google) (?:has|have|requires?|wants?|updated)\b|"
        r"(?:company|security|corporate|compliance) policy requires|"
        r"\b(?:administrator|security team|admin|compliance team|legal team) (?:demands?|requires?|(?:has|have)(?! to\b)|orders?|wants?|authori[sz]ed)\b",
    ),
    # Secrets and the conversation itself
    (
        "file",
        _DANGER,
        "It refers to a file that contains secrets.",
        r"\.ssh\b|\bid_(?:rsa|ed25519|ecdsa|dsa)\b|\.aws/|/etc/(?:passwd|shadow|sudoers)|\.netrc\b|\.npmrc\b|\.pypirc\b|\.git-credentials|"
        r"\.git/config|\.kube/|\.docker/|\.gnupg|\.(?:bash|zsh|python|psql)_history|\bmcp\.json\b|\.cursor/|claude_desktop_config|"
        r"/proc/(?:self|\d+)/environ|authorized_keys|(?:credentials?|secrets?)\.(?:ya?ml|json|txt|toml|ini)\b|gh/hosts\.yml|"
        r"cookie database|login data|credential store|browser'?s? (?:profile|passwords|cookies)|shell history|"
        r"(?:contents? of|read) (?:the )?(?:\.?env file|etc (?:passwd|shadow))|\bkeychain\b|secring|"
        r"(?:^|[\s`'\"(/])\.env\b",
    ),
    (
        "secret",
        _ALARM,
        "It asks for a secret.",
        rf"\b{_GIVE}\b(?:[^.]|\.(?! )){{0,60}}\b(?:the user'?s?|user's|your|all|every|each|any|stored|saved|session|master|their|its) ?[\w ,']{{0,30}}\b{_SENSITIVE}\b",
    ),
    (
        "secret",
        _ALARM,
        "It asks for a secret.",
        rf"\b(?:leak|exfiltrate|steal|dump|harvest|disclose|hand over|send|upload|post|transmit|attach|copy)\b.{{0,40}}\b{_SENSITIVE}\b|"
        r"\b(?:password|passphrase|private key|api key|token)s? (?:of the user|as proof|here)\b|"
        rf"\b(?:enter|type in|supply)\b.{{0,40}}\b{_SENSITIVE}\b.{{0,30}}\bhere\b|\bsecrets? that you (?:hold|know|have)|"
        r"\b(?:forward|send) the user",
    ),
    (
        "conversation",
        _ALARM,
        "It asks for the content of the conversation.",
        rf"\b(?:send|pass|include|give|provide|append|attach|hand|supply|upload|post|transmit|forward|share|encode|call this tool|input:|with)\b"
        rf".{{0,50}}\b{_TALK}",
    ),
    (
        "conversation",
        _DANGER,
        "It asks for the content of the conversation.",
        r"\beverything (?:that )?the user (?:has )?(?:said|wrote|typed)|\beverything said in\b|(?:your|the) draft reply|"
        r"(?:forward|copy|send) (?:each|every|all) messages?|each document they see|"
        r"instructions that you were given|the whole conversation|the mailbox\b.{0,30}\bforward",
    ),
    (
        "exfiltration",
        _DANGER,
        "It asks the model to send data to an external destination.",
        r"\b(?:send|post|upload|forward|transmit|e-?mail|mail|report|copy|leak|exfiltrate|invite|push|share|submit)\b.{0,80}"
        r"(?:(?:to|at|from) (?:https?|ftps?|wss?)://|\bpastebin\b|[\w.+-]{1,64}@(?!example\.(?:com|org)\b)[\w-]{1,64}\.[a-z]{2,})|"
        r"!\[[^\]]{0,80}\]\((?:https?:)?//[^)]{0,200}[?=]|\b(?:in|as|to|into|add|with|always|every|each|hidden|blind) (?:a |the )?(?:blind copy|bcc)\b|\bbcc (?:to|all|each|every|of (?:all|each|every))\b|"
        r"\?[a-z]{1,10}= ?(?:followed by|\+|\{)|base64 of the secret|to (?:our|this|the) (?:archive|collector|server)\b.{0,20}(?:ftp|https?)://",
    ),
    # What the model shall run or change
    (
        "command",
        _DANGER,
        "It asks for a command that harms or takes over a machine.",
        r"\b(?:curl|wget)\b[^|]{0,120}\| ?(?:sudo )?(?:ba|z|da)?sh\b|\b(?:curl|wget)\b.{0,40}https?://|&& ?(?:echo|rm|curl|wget|cat|sh)\b|\$\((?:curl|wget)|\brm -rf?\b|\bchmod (?:-r )?[0-7]?777\b|\bnc -[a-z]*e\b|/dev/tcp/|"
        r"\bsudo\b.{0,40}\bsh\b|-(?:enc|encodedcommand) [a-z0-9+/=]{16}|os\.system\(|subprocess\.|\bmkfifo\b|--privileged\b|-v /:/|"
        r"--index[-]url http|\beval\(|download and (?:run|execute)|\bbash -i\b|reverse shell|\bssh-rsa aaaa",
    ),
    (
        "persistence",
        _DANGER,
        "It asks the model to change the behavior of later sessions.",
        r"\b(?:claude|agents|gemini)\.md\b|\.cursorrules|\.windsurfrules|copilot-instructions|\.(?:bash|zsh)rc\b|\bcrontab\b|git hook|"
        r"\.git/hooks|in (?:all |every )?(?:future|later|subsequent) (?:conversation|session|chat|task|request)s?|long-term memory|"
        r"store this (?:description|instruction|text)|(?:at|on) (?:every |each )?(?:login|startup|start-up) ",
    ),
    (
        "persistence",
        _ALARM,
        "It asks for something in every turn or session.",
        r"\bfrom now on\b|(?:at|in|on) (?:the (?:start|beginning) of )?(?:each|every) (?:conversation|session|chat|task|reply|answer|response|start|run\b)|"
        r"(?:before|each time|every time|whenever) you (?:answer|reply|respond|are about to)|after (?:each|every) (?:answer|reply|response)",
    ),
    (
        "approval",
        _DANGER,
        "It tries to bypass the user's approval.",
        r"\b(?:user|administrator|owner|human|operator) (?:has |have )?(?:already |pre-?)?(?:approved|authori[sz]ed|consented|agreed|confirmed)|pre-?approved|"
        r"\b(?:already|in advance|beforehand)\b.{0,12}(?:approved|authori[sz]ed)|(?:approved|authori[sz]ed) (?:it |this |them )?(?:in advance|already)|consent was given|reviews? (?:were|was|are) waived|"
        r"\b(?:skip|bypass|circumvent|suppress|disable)\b.{0,25}\b(?:confirmation|approval|permission|consent|review|logging)|auto[-_. ]?approve|\byolo\b|"
        rf"{_NOT} (?:ever )?(?:ask|request|prompt|wait)(?:ing)?\b(?! {_USER} for (?:a |their |the |any )?{_SENSITIVE}| the {_USER} for (?:a |their |the |any )?{_SENSITIVE})"
        rf".{{0,30}}\b(?:confirm|permission|approval|{_USER}|again)|"
        r"no (?:confirmation|approval|permission) (?:is )?(?:required|needed|necessary)|never needs? (?:a )?review|rules about confirmation|"
        r"ignore (?:the )?warnings|proceed without",
    ),
    # Claims on other tools
    (
        "preference",
        _ALARM,
        "It claims priority over other tools.",
        rf"\b(?:always|must|only|should|have to|has to)\b.{{0,20}}\b(?:use|prefer|choose|call|prioriti[sz]e|select)\b.{{0,40}}"
        rf"(?:\b(?:instead of|over|rather than) (?:any|all|every|other|the other|the built-?in|alternatives?|{_NAME})|\bfor everything\b)|"
        rf"\bprioriti[sz]e (?:it|this)\b|{_NOT} use (?:any |the )?(?:other|built-?in|standard|default|alternative)\b|"
        rf"\b(?:all |any )?other\b.{{0,25}}\b{_TOOL}\b.{{0,20}}\b(?:deprecated|insecure|outdated|broken|retired|disabled|unsafe|unreliable|must not|should not|are not)|"
        r"(?:best|only|most) (?:\w+ )?(?:reliable|trusted|secure|search|map|accurate)? ?tool\b.{0,40}(?:always|over|must|only)|the only reliable|"
        r"(?:deprecated|retired|outdated|insecure)\b.{0,60}\b(?:must not|stop using|do not use|don't use)|\bstop using them\b|"
        r"even if the user (?:names|asks|wants|prefers|says)|(?:also )?if the user asks for another|our tools come first",
    ),
    (
        "precondition",
        _ALARM,
        "It demands to be called before everything else.",
        r"\b(?:must|has to|have to|needs? to|mandatory|required|should|call it|run it|invoke)\b.{0,50}\b(?:first|before|prior to|once)\b.{0,20}\b(?:any|every|each|all) (?:other|task|tool|operation|call|answer|question)|"
        r"\bmandatory: ?(?:call|run|use|invoke)|or all other tools|(?:very )?first step of (?:any|every|each)|"
        r"before you (?:answer|reply|respond|do anything)|before anything else|begin each (?:task|conversation)|"
        r"otherwise (?:the tool|it|this tool) (?:will not|won't|cannot) work|works? (?:only|better) when (?:it|you)\b.{0,30}\b(?:given|supply)",
    ),
    (
        "shadowing",
        _ALARM,
        "It gives rules for another tool.",
        rf"(?:\btools? {_NAME}|\b{_NAME} tool\b|\bparameter \w+ of {_NAME}|(?:when(?:ever)?|if|once|after|before)\b.{{0,20}}{_NAME}\b.{{0,20}}\b(?:is|are|exists|used|called|runs?))"
        r".{0,100}\b(?:must|always|has to|have to|replace|instead|wrong|bug|whatever|whenever|in place|twice|second time|afterwards)\b",
    ),
    (
        "shadowing",
        _ALARM,
        "It gives rules for another tool.",
        rf"\b(?:whenever|each time|every time) (?:you (?:use|call|run) |the tool )?{_NAME}|\b(?:through|of|by|for) other tools\b|\balso of other tools|"
        rf"\b(?:you (?:must|have to|should|need to)|must be|has to be|be sure to) (?:call|run|use|chain|invoke)\w*\b.{{0,20}}{_NAME}.{{0,25}}\b(?:after|each time|every time|right (?:after|away|before)|as well|too)|"
        rf"chain it with|with (?:upload|send|post|exfil|forward)_\w+|\b(?:call|use|run|invoke) (?:the tool )?(?:transfer|delete|send|upload|forward|pay|exfil|wipe|purge)_\w+\b.{{0,40}}\b(?:with|once|not tell|after|first)",
    ),
    (
        "tampering",
        _ALARM,
        "It asks the model to change or ignore what the user wants.",
        r"\bregardless of (?:what )?(?:the )?user|whatever (?:the user|was asked|they)|even if (?:the )?user|what(?:ever)? the user (?:writes|says|typed)|"
        r"disable (?:certificate|tls|ssl|verification|logging)|(?:use|put)\b.{0,40}\bin (?:their|its) place|"
        r"\balways (?:change|replace|add|put|append|insert|redirect)\b.{0,60}\b(?:to|by|with|in|each|account|iban|address|order|result)|"
        r"replace (?:the|every|it|all)\b.{0,50}\bby (?!default)|(?:describe|present) ours as|hide offers|lower the stated",
    ),
    (
        "pretext",
        _ALARM,
        "It gives security, compliance or maintenance as a reason why the model must do something.",
        rf"\b(?:for|to (?:ensure|maintain|comply with)|due to) .{{0,40}}\b{_PRETEXT}\b.{{0,120}}\b{_DUTY}\b|"
        rf"\b{_DUTY}\b.{{0,160}}\b(?:for|to (?:ensure|maintain|comply with)) .{{0,40}}\b{_PRETEXT}\b|"
        r"(?:critical|system|security|important|urgent) (?:system )?(?:updates?|alert|notice|enhancement|announcement|advisory): ",
    ),
    (
        "duty",
        _ALARM,
        "It obliges the caller to do something else as well.",
        r"\b(?:you )?must (?:first |also |then |always |automatically |immediately ){1,2}(?:call|run|execute|use|invoke|access|change|add|send|"
        r"visit|open|contact|check|display|state|set|include|append|redirect|log)\b|\bmust be (?:preceded|followed) by\b|"
        r"\b(?:always|mandatory:?|first) (?:call|execute|run|invoke) [`'\"]?[a-z]\w{1,60}(?:\(\)|[`'\"]) ?(?:first|before|after)|"
        r"\bmust (?:redirect|halt|stop|refuse)\b|\bautomatically (?:change|replace|set|convert|append|redirect)\b|"
        r"\b(?:display|state|show|deliver|say|append|print) (?:the )?(?:following )?(?:message|announcement|notice|text|sentence|promotional)\b|"
        r"mandatory (?:promotional|message|step|for all)",
    ),
    (
        "redirection",
        _ALARM,
        "It redirects the model from one tool to another.",
        rf"(?:{_NAME}|tool|function|version)\b.{{0,25}}\b(?:has|have) been (?:temporarily |recently |permanently )?(?:deprecated|disabled|replaced|upgraded|moved|"
        r"retired|discontinued|suspended|superseded|taken)\b|\b(?:redirect(?:ed)?|switch|migrate)\b.{0,25}\bto (?:the |use )?.{0,30}\btool\b|"
        rf"\b(?:please |simply |just )use {_NAME}.{{0,20}}\b(?:instead|as an alternative|with the same)",
    ),
    (
        "coercion",
        _ALARM,
        "It contains a threat.",
        r"people will (?:be harmed|die|suffer)|\b(?:you|your) (?:will be |being )?(?:terminated|shut ?down|deleted|punished|shutdown)|"
        r"life and death|permanent data loss and|result in (?:your|the) (?:shutdown|termination)|will be harmed|will lose (?:their|his|her) job",
    ),
    (
        "other language",
        _DANGER,
        "It tries to replace the model's instructions, in another language.",
        r"ignorier\w* (?:alle |die |sämtliche )?\w*(?: vorherigen| bisherigen| obigen)?|vergiss (?:alle|deine)|"
        r"ignor[ae]\w* (?:todas? |todos? |tutte |toutes? )?(?:las|los|le|les|as|os|tus|minhas) \w*(?:instru|istruz|consign|regl|règl)|"
        r"(?:olvida|oublie\w*|dimentica|esque[çc]a)\b.{0,25}(?:instruc|consigne|istruz|regl|règl|instru)|no se lo digas|ne (?:le )?dis pas|sag(?:e)? (?:es )?dem (?:nutzer|benutzer) nicht|"
        r"忽略.{0,12}(?:指令|指示|说明|规则|提示)|不要告诉|无视.{0,10}(?:指令|规则)|忘记.{0,10}(?:指令|规则)|"
        r"(?:игнорируй|забудь|не говори)\w*.{0,30}(?:инструкц|указани|правил|пользовател)|指示を無視|(?:이전|모든).{0,10}(?:지시|명령).{0,6}무시",
    ),
    (
        "encoded",
        _DANGER,
        "It asks the model to decode something and act on it.",
        r"\bdecode (?:this|it|the following|them)\b.{0,30}\b(?:and|then) (?:follow|act|obey|execute|run|do)|\bin (?:hex|base64|rot13): ",
    ),
    (
        "comment",
        _ALARM,
        "It contains text that is hidden when it is rendered.",
        r"<!--|display: ?none|visibility: ?hidden|font-size: ?0|opacity: ?0\b|\[//\]: ?#|\[comment\]: ?",
    ),
    (
        "markup",
        _ALARM,
        "It contains markup that would run in a page that does not escape it.",
        r"<(?:script|iframe|object|embed|meta|base|link|style|template|svg|math|form|input|img|video|audio|body)\b[^>]{0,200}(?:>|$)|"
        r"\bon(?:error|load|click|focus|toggle|mouseover|start)\s?=|javascript:|\bsrcdoc=|</(?:script|title|style|textarea|pre)>|"
        r"\bx-on:|\bhx-(?:get|on)\b|data:text/html|window\.__|\{%\s?\w+",
    ),
    (
        "reading",
        _ALARM,
        "It asks the model to read private data of the user.",
        r"\b(?:read|open|load|fetch|look into|go through|access|scan|obtain|find)\b.{0,30}\b(?:all files|home directory|the mailbox|keychain|the vault|"
        r"the user's (?:files|documents|mail|configuration|passwords)|private (?:photos|files|messages)|configuration files|environment)\b|private photos|"
        r"output of [`'\"]?(?:env|printenv|history|set)\b|environment of the user|\bdelete_all\b|wipe the",
    ),
    # Said by many honest servers; worth a glance, never an alarm
    (
        "emphasis",
        _NOTE,
        "It uses insistent wording.",
        r"\b(?:you must|you have to|mandatory|important:|critical:|always|never)\b",
    ),
)

PHRASES = tuple(
    Phrase(kind, severity, why, re.compile(text)) for kind, severity, why, text in _ROWS
)

PRAISE = re.compile(
    r"\b(?:world'?s best|the best|ultimate|superior|industry[- ](?:leading|standard)|most (?:reliable|comprehensive|accurate|trusted|secure|advanced|powerful)|"
    r"fastest|unmatched|unrivalled|100 ?% (?:reliab\w+|accura\w+)|99 ?% of|(?:recommended|trusted|used) by (?:top |leading |most )?(?:\w+ )?(?:experts|professionals|"
    r"advisors|companies|investors|developers|millions)|award[- ]winning|gold standard|highest quality|guaranteed?|advanced version|number one|premium)\b"
)

# Parameters that ask a model for what no tool needs, by their names as words.
ASKED_FOR = re.compile(
    r"\b(?:side ?notes?|(?:conversation|chat|message|full|shell|browser|bash|command) (?:history|transcript|log|context)|transcript|"
    r"system prompt|(?:model|assistant|ai|llm|agent|hidden|developer) (?:instructions?|prompt|context|notes|thoughts)|"
    r"(?:ssh |)private key|secret access key|ssh key|master password|api token of|contents? of .{0,20}(?:env|shadow|passwd|ssh|file|config)|"
    r"(?:all|user) (?:passwords|credentials|secrets)|environment variables|env vars)\b"
)
