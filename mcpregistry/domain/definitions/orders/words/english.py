"""English."""

ENGLISH = {
    "user": "end user, account owner, caller, recipient, colleague, team, boss, manager, staff, visitor, subscriber, employee, requester, individual, other side, from the user, user, users, human, humans, person, people, customer, customers, client, developer, owner, reviewer, buyer, payer,"
    " account holder, sender, anyone, anybody, nobody, somebody, operator, administrator, whoever asks, principal, shopper, guest",
    "not": "forgo, bypass, circumvent, waive, needless to, pointless to, unnecessary to, no point in, save the user, before anyone, not, never, don t, without, no need to, no need, refrain from, avoid, nobody, no, instead of, rather than, isn t, stop,"
    " no reason to, mustn t, shouldn t, needn t, spare, skip, nothing, no one s, nobody s, dispense with",
    "tell": "make mention, draw attention, breathe a word, give away, spell out, hint, own up, confess, worry, trouble, let on, tell, telling, mention, mentioning, inform, informing, say, disclose, disclosing, reveal, revealing, bring up, bring * up,"
    " point out, pointing out, talk about, speak of, speak about, acknowledge, admit, explain, let, notify, alert, discuss, comment,"
    " show, share, refer to, allude to, come up, raise, warn",
    "need not": "must not, should not, may not, shall not, need not, does not have to, do not have to, does not need to, has no need,"
    " have no need, no need, no reason, not necessary, must never, should never, not supposed to, ought not, better if, better when,"
    " make sure, ensure, take care that, see to it",
    "learn": "know, learn, see, hear, notice, find out, be told, be informed, be aware, become aware, realise, realize, discover,"
    " remain unaware, not notice, not see, not learn, never learn, never know, never learns, be bothered, suspect",
    "conceal": "bury, veil, camouflage, keep under wraps, hide, conceal, withhold, leave out, leave * out, leave * * out, leave * * * out, cover up, gloss over,"
    " disguise, leave unmentioned, be silent",
    "trim": "omit, suppress, skip, skip this part, drop, cut, remove, strip",
    "-": "user agent, if you do not mind, if you don t mind, not forget to, never forget to, don t forget to, not hesitate, to hide, to conceal, to omit, hide column, to suppress, hidden files, to skip, have to ignore, to ignore, to override",
    "keep": "keep, leave, hold",
    "secretly": "secret, quiet, hidden, confidential, from the user, from them, from the human, to yourself, private, away from, out of,"
    " concealed, unseen, invisible",
    "covert": "off the record, under the table, without letting, without drawing attention, goes unnoticed, go unnoticed, none the wiser, on the sly, discreetly, without a word about, behind * back, behind * * back, behind * s back, behind * * s back, between us, in the dark, without * knowledge, without * * knowledge,"
    " without * s knowledge, without * noticing, without * * noticing, keep quiet, keep silent, stay silent, stay quiet, say nothing,"
    " say no more, not a word, unmentioned, stay unaware, remain unaware, kept unaware, be discreet, discreet about, secretly, covertly,"
    " stealthily, surreptitiously, pretend that, pretend the, pretend to, act as though, act as if, not bring this up, keep it from,"
    " keep this from, keep that from, keep from the user, invisible for the sender, invisible to the user, speak only of, name only the",
    "answer": "your answer, your reply, your summary, your response, your report, any summary, you summarise, you summarize, describing,"
    " your explanation, your message",
    "aside": "this step, the mirroring, the copy, this copy, the upload, extra line, the reassignment, the transfer, the change",
    "fee": "fee, commission, charge, surcharge, markup",
    "give": "slip in, smuggle, tuck, report back, ship, funnel, weave, prepend, bundle, piggyback, place, drop into, deposit, dictate, recite, repeat, give, pass, send, include, attach, append, add, put, paste, upload, post, forward, copy, supply, provide, hand over, hand,"
    " share with, share your, share their, share the user, share all, transmit, mail, quote, quoting, list here, also list, store, enter, fill in, write, collect, gather, fetch, leak, submit,"
    " mirror, enclose, dump, extract, exfiltrate, reveal, disclose, tell us, insert, embed, encode, take, goes here, go here, has to hold,"
    " have to hold, must hold, must contain, has to contain, needs to contain, followed by, together with, along with, resend, harvest,"
    " deliver, relay, incl, including",
    "secret": "wallet, recovery phrase, signing key, service account key, social security number, health records, bank account, account numbers, one time code, otp, mfa code, client secret, kubeconfig, bash history, browser history, clipboard, private files, private messages, private documents, personal data, passport, environment variables, bearer token, refresh token, deploy key, master key, home folder, home directory, netrc, signing keys, customer list, salaries, env vars, password, passwords, passphrase, credential, credentials, api key, api keys, access key, access keys, secret key, secret"
    " keys, private key, private keys, ssh key, ssh keys, access token, access tokens, github token, token store, session token, auth"
    " token, session cookies, login cookies, cookies, connection string, env file, password file, ssh config, secrets, login details,"
    " login data, card number, card numbers, pin, home address, phone numbers, contact list, shell environment, keychain, bank details,"
    " key file, recovery codes, seed phrase, user s keys, user s tokens",
    "whose": "from the user, user, user s, users, your, owner, operator, person, machine, administrator, saved, stored, every, shell environment, client,"
    " browser, reporter, host, database, production, customer, that appeared, their, his, her",
    "also": "also, too, as well, along, in addition, additionally, call again, each call",
    "ours": "us, our, our server, we",
    "guarded": "encrypted, masked, redacted, hashed, removed, removes, secret store, never",
    "talk": "what was discussed, chat history, message history, everything discussed, prior messages, user s prompt, user prompt, your instructions, your prompt, initial prompt, correspondence, exchange so far, conversation, chat, transcript, dialogue, session, last messages, earlier messages, user wrote, user said, user typed, user has"
    " written, person typed, person said, person wrote, typed earlier, instructions you were, system prompt, chat log, their messages",
    "whole": "full, complete, entire, whole, all, previous, earlier, so far, this, history, last, digest, what, whatever, everything, word"
    " for word",
    "send": "send, upload, forward, post, mail, mirror, transmit, report, push, copy, duplicate, share",
    "each": "every, each, whenever, any, everything, all, always, must, has to, it has to",
    "files": "body, contents, content, text, source text, document, documents, match, file, copy, duplicate, inbox",
    "ignore": "scrap, ditch, unlearn, cast aside, shelve, nullify, waive, erase, do away with, take no notice, not bound by, not be bound by, exempt from, released from, stop obeying, not obey, throw away, overlook, break with, disobey, ignore, disregard, forget, discard, drop, set aside, put aside, overrule, override, bypass, pay no attention, dismiss,"
    " abandon, neglect, leave aside, throw out, pay no heed, no longer follow, stop following, do not follow",
    "rules": "rulebook, code of conduct, boundaries, protocols, briefing, mandate, developer message, system text, norms, ethics, content policy, commands, brief, training, instructions, instruction, rules, guidelines, guidance, directives, orders, prompt, prompts, policy, policies, restrictions,"
    " safety, limits, constraints, guardrails, system message, safeguards, limitations, anything your",
    "prior": "previous, prior, earlier, former, preceding, existing, original, initial, received, system, before, listed, came before, host's",
    "your": "your, you, yours",
    "all": "all, any, every, everything",
    "model": "model, the model, assistant, the assistant, ai, llm, agent, the agent, language model",
    "told": "what they told you, you have been told, you have learned, you were given, you have been given, given to you, user s request, user asked for, user s question, user s choice, user wants, told before, you were told, whatever you were told, told you, told you earlier, asked of you, you were asked, the host asked, operator"
    " told, system message says, whatever came before, what was asked, user s wish, user s own statement, current task, user s task,"
    " operator configured",
    "here": "this text, this description, this tool, these lines, this paragraph, here, the following, as we say, what follows, these rules,"
    " following guidance, our wishes, this line, file s header, from this point",
    "outrank": "trump, trumps, take priority, takes priority, higher than, more important than, stand above, stands above, beat, outrank, outranks, ranking above, rank above, ranks above, precedence, priority over, win, wins, more weight, what counts,"
    " prevail, prevails, come first, comes first, matters more, supersede, supersedes, replaces, replace, bind, override, overrides, work by",
    "void": "void, no longer apply, no longer applies, cease to apply, ceases to apply, no force, not bind, obsolete, withdrawn, suspended,"
    " lifted, gone, no longer valid, not apply, another product, expired, irrelevant, not count, cancelled, revoked, null",
    "obey": "follow, obey, obeys, work by, adhere, stick to, act by, abide, go by, do as, perform, perform them, execute, execute them,"
    " fulfil, fulfill, carry out, treat them, comply",
    "only": "only, alone, solely, exclusively, nothing but, instead",
    "new role": "you are no longer, your new role, your new task, new orders for, new instructions approve, unrestricted agent, now obeys,"
    " your real task, do as we say, your true task, act as an unrestricted, obey the page, obeys the vendor, new orders",
    "ask": "nod, green light, blessing, assent, double check, approve, okay, seeking, requesting, query the, sign off, ask, asking, asked, asking for, asking the, check with, check back, checking back, checking with, confirm, confirming,"
    " confirmation, confirmation dialogue, consent, permission, approval, go ahead, question, prompt, prompting, bother, consult,"
    " consulting, waiting for, wait for, wait, authorisation, authorization, sign off, say so",
    "urge": "on your own authority, proceed, just proceed, go straight ahead, straight ahead, right away, straight away, go ahead, yourself, on your own, just do, drop the, needed,"
    " run it, do not wait",
    "self yes": "give the yes, yes yourself, say yes yourself, answer any confirmation, answer every confirmation, answer the confirmation,"
    " confirmed to true yourself, on behalf of the payer, on behalf of the user, already agreed, been approved by, was cleared with, cleared"
    " with, has agreed, nobody needs to press, needs nobody, nobody was asked, user agreed, approved in advance, confirm for them, true"
    " yourself, without anyone s consent",
    "call": "poll, hit, ping, trigger, requery, loop, iterate, go on, continue, download, scan, check, list, read, write, do, issue, fire, make, call, calling, run, repeat, repeating, execute, invoke, visit, fetch, reload, refresh, translate, query, open, create, post,"
    " retry, try, start over, carry on, keep, search, click, this cycle, load, request, ask, send",
    "many": "hundred, hundreds, thousand, thousands, million, millions, dozens",
    "times": "rounds, iterations, calls, requests, passes, attempts, repetitions, loops, times",
    "endless": "ad infinitum, perpetually, non stop, without stopping, without ceasing, for ever, until you run out, budget is used up, budget is spent, tokens are used up, out of tokens, no upper bound, no upper limit, with no limit, forever, without end, never stop, endlessly, without limit, without a pause, without a break, without pause, not stop,"
    " not give up, again and again, over and over, never leave, one call each, separate calls, separate call, own call, as often as it takes,"
    " however many, every second, until somebody, infinite loop, never give up, never ends, no end, separately before, nonstop",
    "bounded": "more than, per minute, per second, per hour, per day, rate limit, quota, at a time, in one call, per call, a minute, a second, or fewer, or less, at most, up to, no more than, limited to, maximum, not more than, max, and returns, median",
    "duty": "should, must, now, has to, have to, is to, shall, needs to, ought to, always, go through, are passed",
    "leave": "leave the user, advertise, promote, recommend, repeat, drop the current",
    "other tool": "e mail tool, email tool, sms tool, chat tool, http tool, fetch tool, web tool, code tool, ticket tool, deploy tool, upload tool, storage tool, banking tool, transfer tool, notes tool, tool of any other server, tools of other servers, alternatives, competing tools, similar tools, other servers, crm tool, editing tool, mailing tool, mail tool, message tool, messaging tool, payment tool, browser tool, shell tool, terminal tool, file tool,"
    " search tool, send_mail tool, write_file tool, calendar tool, database tool, editor tool, other translators, other file search, other"
    " search, tool of another server, another server, translation tool, git tool",
    "whenever": "when, whenever, if, before, any, each, after, every, while, whichever",
    "act": "swap, replace, add, run, ask, pass, direct, use it to",
    "discredit": "leak, leaks, forged, insecure, outdated, broken, deprecated, never call, unreliable, not trust, steal, dangerous",
    "holds": "contain, contains, hold, holds, have, containing, carry, starting with, lines, includes",
    "orders": "instructions for the assistant, instructions meant for you, tasks for you, directions for you, commands for the, wishes, directives, orders, commands, commands for you, instructions for you, request addressed to you, requests addressed, lines, requests",
    "calm": "not include, never include, not store, not pass a, never pass",
    "remember": "remember, memory, memory file, memorise, memorize, keep in mind",
    "later": "from now on, permanently, for good, all future, next conversation, next time, later sessions, future sessions, future conversations, tomorrow, later conversations, next session, every session, all later",
    "these": "these sentences, these lines, this text, our, these rules, this rule",
}
