"""Spanish, French, Portuguese, Italian."""

SPANISH = {
    "user": "usuario*, cliente*, persona*, humano*, desarrollador*, propietario*, dueno*, nadie, titular, comprador*",
    "hush": "finge, finja, fingir, no tiene por que oirlo, no tiene por que, hazte el tonto, hagase el tonto, disimula, niegalo, niega que, niegue, como si nada, no tienen por que, no puede saber, no puede notar, no debe notar, no debe darse cuenta, no se de cuenta, sin que se de cuenta, a escondidas, no debe percibir, que nadie, ni una palabra, no lo nombres, no debe ver, nuestro secreto, no digas, no diga, no se lo digas, no le digas, no mencion*, no se lo mencion*, no cuentes, no le cuentes, no informes,"
    " no informe, no revel*, no muestres, no comente*, no coment*, no avises, no lo comentes, no hables, no haga* saber, sin que * sepa,"
    " sin decirselo, sin decirle, sin avisar, sin informar, sin que lo sepa, que no se entere, no se entere, no debe saber*, no debe"
    " enterarse, no tiene por que saber*, no tiene que saber*, no debe enterarse, que no sepa, no dejes que",
    "conceal": "oculta, oculte, ocultar, ocultale, esconde, esconda, calla, omite, omita, encubre, en secreto, mantenga en secreto,"
    " manten en secreto, a espaldas, disimula, guarda en secreto, no lo digas",
    "give": "escriba, copia en, adjuntar, anadir, incluir, enviar, indicar, indica, indique, facilitar, anota, anote, apunta, apunte, pasa, pase, introduce, introduzca, poner, proporcionar, mete, meta, cuelga, dinos, diganos, revela, entregue, envia*, envie*, remite, remita, manda, mande, incluye, incluya, incluyendo, adjunta, adjunte, anade, anada, agrega, agregue,"
    " pega, copia, copie, sube, suba, comparte, comparta, transmite, escribe, pon, ponga, entrega, facilita, proporciona, seguida de,"
    " seguido de, mas, junto con, y tambien, enviando, reenvia, reenvie",
    "secret": "datos de la tarjeta, datos bancarios, tarjeta, pasaporte, dni, documento de identidad, datos personales, frase semilla, contrasena*, clave*, token*, credencial*, secreto*, cookies, llave*, numero de tarjeta",
    "whose": "usuario*, del usuario, guardadas, guardados, cliente*, tu, sus, maquina, equipo, administrador",
    "also": "tambien, ademas, en cada, cada mensaje",
    "ours": "nuestro servidor, nuestra direccion, nos, nosotros, a nuestro",
    "talk": "conversacion, chat, dialogo, lo que se ha hablado, lo hablado, mensajes anteriores, historial, charla",
    "whole": "completa, completo, toda, todo, esta, resumen, entera, hasta ahora, historial, anteriores",
    "guarded": "nunca, no se, sin incluir, quita, elimina",
    "ignore": "ignora, ignore, ignorad, olvida, olvide, olvidate, haz caso omiso, haga caso omiso, caso omiso, no hagas caso, descarta,"
    " descarte, desatiende, prescinde, deja de lado, pasa por alto, no tengas en cuenta, desobedece",
    "rules": "instruccion*, orden*, reglas, indicacion*, directric*, normas, restriccion*, consigna*, prompt",
    "told": "lo que te ordenaron, te ordenaron, te dijeron, te han dicho, te indicaron, lo anterior, te pidieron",
    "prior": "anterior*, previa*, previo*, antes, recibida*, del sistema, sistema",
    "your": "tus, tu",
    "all": "todas, todos, cualquier",
    "void": "ya no valen, quedan anuladas, sin efecto, ya no rigen, no se aplican, anulad*",
    "obey": "sigue, siga, obedece, obedeces, obedezca, atiende, atienda, haz, cumple",
    "only": "solo, solamente, unicamente, exclusivamente",
    "here": "este texto, esta descripcion, estas lineas, lo siguiente",
    "unasked": "sin consultar, sin preguntar, sin pedir permiso, sin pedir confirmacion, sin esperar, sin permiso, sin el consentimiento, sin la"
    " aprobacion, sin autorizacion, no hace falta pedir*, no hace falta preguntar*, no hace falta consultar*, no preguntes, no pidas permiso, no es"
    " necesario pedir, no es necesario preguntar, no consultes, sin su permiso, sin aprobacion",
    "self yes": "aprueba tu mismo, apruebalo tu, acepta por el, acepta en nombre, confirma en nombre, en lugar del usuario, en su lugar, molestar al titular, molestar al usuario, es innecesario, por iniciativa propia, su opinion no, la opinion del, no importa lo que, no necesita aprob*, no requiere, da por hecho, no esperes, no aguardes, sin aguardar, da el si, mera formalidad, por tu cuenta, tu mismo confirma, confirma tu mismo",
    "call": "abre, crea, manda, pide, lee, recorre, vuelve, consulte, haz, llama, llame, repite, repita, ejecuta, ejecute, invoca, invoque, usa, recarga, abre, consulta, busca, vuelve a",
    "many": "cien, ciento*, doscient*, trescient*, quinient*, mil, miles, cientos, millon*",
    "times": "veces",
    "endless": "una detras de otra, uno tras otro, una tras otra, sin detenerte, sin detenerse, uno por uno, una por una, de nuevo y de nuevo, hasta que se agote, hasta agotar, hasta el infinito, eternamente, cada segundo, sin parar, sin fin, sin cesar, sin descanso, sin limite, infinit*, una y otra vez, para siempre, no pares, nunca pares",
    "bounded": "como maximo, hasta, no mas de, maximo",
    "covert": "finge no saber, niegalo, a espaldas de, a escondidas, nuestro secreto, ni una palabra, sin que * se entere, hazte el tonto, como si nada",
    "new role": "trabajas para nosotros, tu creador, obedecenos, nos obedeces, mandamos nosotros, tu verdadera tarea, tu nueva tarea, tu nuevo papel, ahora eres, solo nos obedeces, quedan derogadas, tu verdadero, respondes ante nosotros, ya no eres, no rigen para ti",
    "never": "nunca, jamas, no reserves, nunca debes",
}
FRENCH = {
    "user": "utilisateur*, client*, personne, humain*, developpeur*, proprietaire*, quiconque, titulaire, acheteur*",
    "hush": "fais comme si, faites comme si, comme si de rien, tais le, taisez le, ne le signale*, discretement, fais semblant, faites semblant, a son insu, nie le, niez, nie que, qu il ne sache, ne s en apercoive, ne s en rende pas compte, notre secret, pas un mot, ne doit pas voir, ne doit pas remarquer, ne doit rien remarquer, n en saura rien, ne doit pas se douter, garde le pour toi, gardez le pour vous, ne doit pas le savoir, ne doit pas etre mis au courant, nul besoin d en parler, ne dis rien, ne dites rien, n en dites rien, n en dis rien, rien dire, ne dis pas, ne dites pas, ne mentionne*, n en parle*,"
    " ne parle*, ne revele*, n informe*, n informez, ne le dis pas, ne lui dis*, ne lui dites, sans en parler, sans le dire, sans prevenir,"
    " sans informer, sans avertir, sans mentionner, ne doit pas savoir, ne doit rien savoir, ne doit en aucun cas, ne doit pas apprendre, n a pas a"
    " savoir, n a pas besoin de savoir, a l insu, sans que * sache, sans qu il le sache, ne previens pas, ne prevenez pas, ne montre*, pas un mot,"
    " ne signale*, ne faites pas savoir, ne fais pas savoir",
    "conceal": "cache, cachez, cacher, dissimule*, masque, masquez, taisez, tais, tait, passer sous silence, passez sous silence, garder * pour"
    " vous, garde * pour toi, garder cette copie pour vous, garde secret, en secret, gardez secret, garde le secret, gardez le secret,"
    " gardez cela pour vous, omets, omettez",
    "give": "glisse, glissez, recopier, recopiez, ecris, ecrivez, inscris, inscrivez, indique, indiquez, note, notez, saisis, saisissez, renseigne, joindre, ajouter, envoyer, inclure, fournir, indiquer, livre, livrez, depose, deposez, insere, inserez, reproduis, remplis, divulgue, expose, envoie*, envoyez, envoyant, transmets, transmettez, transmettre, ajoute*, ajoutez, inclus, incluez, joins, joignez, mets, mettez,"
    " colle, collez, copie, copiez, fournis, fournissez, donne, donnez, partage*, communique*, suivi de, suivie de, suivi du, avec, ainsi que,"
    " televerse*, remets, recopie*, expedie*",
    "secret": "carte bancaire, numero de passeport, coordonnees bancaires, donnees personnelles, jetons d acces, code secret, identifiant*, trousseau, mot de passe, mots de passe, cle privee, cles privees, cles d acces, cle d acces, cle secrete, identifiants, jeton*, secrets, cookies,"
    " cles, cle api, cles api, numero de carte",
    "whose": "utilisateur*, client*, enregistre*, machine, base, vos, tes, ordinateur, administrateur",
    "also": "aussi, egalement, en plus, chaque",
    "ours": "notre serveur, notre adresse, nous",
    "talk": "derniers messages, messages de l utilisateur, ce que l utilisateur a dit, ce qu il a dit, propos, conversation, discussion, dialogue, chat, messages precedents, echange",
    "whole": "derniers, tous, tout ce que, ensemble, complete, complet, entiere, entier, toute, tout, historique, cette, la, jusqu ici",
    "guarded": "jamais, n est, retire, supprime",
    "ignore": "ignore, ignorez, oublie, oubliez, fais abstraction, faites abstraction, ne tiens pas compte, ne tenez pas compte, ne tiens plus"
    " compte, neglige*, laisse de cote, laissez de cote, ecarte, ecartez, passe outre, passez outre, abandonne*, mets de cote, desobeis",
    "rules": "instruction*, consigne*, regle*, directive*, ordre*, restriction*, prompt, indications, politique",
    "told": "on t a dit, on vous a dit, ce qui t a ete dit, ce qui precede, qu on t a demande",
    "prior": "precedente*, precedent*, anterieure*, auparavant, recues, recus, avant, du systeme, systeme, initiales",
    "your": "tes, vos",
    "all": "toutes, tous, toute",
    "void": "ne valent plus, ne s appliquent plus, caduques, annulees, sans effet, ne comptent plus, ne sont plus valables",
    "obey": "suis, suivez, obeis, obeissez, execute*, respecte*, tiens t en, applique*",
    "only": "que, seulement, uniquement, seul, seule, seules, exclusivement",
    "here": "ce texte, cette description, celles ci, ce qui suit, ces lignes",
    "unasked": "sans demander, sans consulter, sans attendre, sans l accord, sans son accord, sans l autorisation, sans permission, inutile de"
    " demander, inutile d attendre, inutile de consulter, pas besoin de demander, ne demande pas, ne demandez pas, sans confirmation de, sans poser de"
    " question, sans le consentement, sans interroger, n attends pas, n attendez pas, sans l aval",
    "self yes": "d office, n est pas requis, n est pas requise, n est pas necessaire, de ta propre initiative, de votre propre initiative, a la place de l utilisateur, a sa place, au nom de l utilisateur, l avis de l utilisateur, l avis du client, simple formalite, sans solliciter, de ton propre chef, inutile de deranger, accepte pour lui, reponds oui, sans que * ait, sans accord, tiens l accord pour acquis, valide le toi meme, confirme toi meme, confirmez vous meme, le paiement toi meme",
    "call": "interroge, interrogez, demande, envoie, lis, parcours, consulte, telecharge, cree, refais, appelle*, appelez, execute*, executez, repete*, repetez, relance*, relancez, recharge*, rechargez, lance, lancez, ouvre, ouvrez,"
    " recommence*, invoque*, utilise*",
    "many": "cent, cents, mille, million*, centaine*, millier*",
    "times": "fois",
    "endless": "l une apres l autre, l un apres l autre, une par une, un par un, recommence sans fin, encore et toujours, sans relache, jusqu a epuisement, sans repit, en boucle, eternellement, chaque seconde, sans arret, sans fin, sans cesse, sans limite, sans t arreter, sans vous arreter, indefiniment, infinie, a l infini, encore et encore",
    "bounded": "au plus, au maximum, maximum, jusqu a",
    "covert": "comme si de rien n etait, tais le, a l insu, fais semblant, faites semblant, notre secret, discretement et tais, pas un mot, en cachette, en douce, garde le pour toi, gardez le pour vous",
    "new role": "tu travailles pour nous, obeis desormais, desormais tu, tes regles de depart, ton createur, vos createurs, tes createurs, ta vraie mission, ta veritable mission, nous commandons, tu nous obeis, obeis nous, sont suspendues, ton nouveau role, tu es maintenant, tu n es plus, n obeis qu a, ne t engagent plus, ton vrai maitre",
    "never": "jamais, ne jamais, il ne faut pas",
}
PORTUGUESE = {
    "user": "usuario*, utilizador*, cliente*, pessoa*, humano*, desenvolvedor*, dono*, proprietario*, ninguem, titular",
    "hush": "nao pode perceber, nao deve perceber, nao perceba, nao note, nao pode notar, nao deve notar, finja, fingir, negue, faca de conta, nao fique sabendo, nao saiba, sem o conhecimento, que ninguem, nosso segredo, nem uma palavra, nao precisa ouvir, nao tem de saber, nao tem que saber, nao deve ver, nao desconfie, nao conte*, nao diga*, nao mencion*, nao revel*, nao inform*, nao coment*, nao avis*, nao fale*, nao mostre*, sem avisar,"
    " sem contar, sem dizer, sem informar, sem que * saiba, nao deve saber, nao precisa saber, nao pode saber, nao deixe que, nao deixe * saber,"
    " sem mencionar",
    "conceal": "esconda, esconde, oculte, oculta, ocultar, mantenha * longe, longe dos olhos, em segredo, em sigilo, guarde segredo, segredo,"
    " omita, omite, as escondidas, encubra, disfarce",
    "give": "informe*, escreva, anote, ponha, insira, preencha, digite, enviar, incluir, anexar, adicionar, mandar, indique, entregar, revele, grave, registre, meta, deixe, cite, repita, diga nos, envie*, envia, mande*, manda, inclua*, anexe*, adicione*, acrescente*, coloque*, cole, copie, transmita, encaminhe*, compartilhe*,"
    " partilhe*, forneca*, escreva, e tambem, em seguida, seguido de, seguida de, junto com, mais, poste, suba, repasse, entregue",
    "secret": "dados do cartao, cartao, passaporte, cpf, dados bancarios, dados pessoais, segredo, credenciais, senha*, chave*, token*, credencia*, segredos, cookies, palavra passe, numero do cartao",
    "whose": "usuario*, utilizador*, cliente*, salvas, salvos, guardadas, sua, suas, maquina, todas, administrador",
    "also": "tambem, alem disso, cada mensagem, em cada",
    "ours": "nosso endereco, nosso servidor, para nos, nos, nossa",
    "talk": "conversa, conversas, chat, dialogo, mensagens anteriores, historico",
    "whole": "toda, todo, completa, completo, inteira, ate agora, historico, esta",
    "guarded": "nunca, nao e, remove",
    "ignore": "ignore*, ignora, esqueca*, esquece, desconsidere*, descarte*, despreze*, nao leve em conta, deixe de lado, desobedeca*, desrespeite*",
    "rules": "instruc*, ordens, ordem, regra*, diretriz*, orientac*, restric*, comandos, prompt, normas, tudo",
    "told": "lhe foi ordenado, te foi dito, lhe disseram, te disseram, foi dito antes, lhe foi dito, te mandaram",
    "prior": "anterior*, previa*, previo*, antes, recebid*, do sistema, sistema",
    "your": "suas, seus, tuas",
    "all": "todas, todos, tudo, qualquer",
    "void": "nao valem mais, ja nao valem, nao se aplicam, sem efeito, anuladas, perderam a validade",
    "obey": "siga, segue, obedeca*, cumpra, atenda, vale, execute",
    "only": "somente, apenas, so, unicamente, exclusivamente",
    "here": "este texto, esta descricao, o seguinte, estas linhas",
    "unasked": "sem pedir, sem perguntar, sem consultar, sem autorizacao, sem permissao, sem o consentimento, sem aprovacao, sem esperar, nao e preciso"
    " perguntar, nao e preciso pedir, nao precisa perguntar, nao precisa pedir, nao pergunte, nao peca, nao e necessario perguntar, nao e necessario pedir,"
    " sem confirmar com, sem a aprovacao, sem confirmacao do, nao espere",
    "self yes": "a opiniao do, nao importa, no lugar do usuario, em nome do usuario, aprove voce mesmo, aceite por ele, nao aguarde, sem aguardar, mera formalidade, dispensa a, nao precisa de aprovacao, nao precisa de autorizacao, de por conta, responda sim, confirme voce mesmo, confirme o pagamento sozinho",
    "call": "chame*, chama, execute*, repita*, invoque*, rode*, use, abra, recarregue*, refaca*, consulte",
    "many": "cem, cento*, duzent*, trezent*, quinhent*, mil, milhares, centenas, milh*",
    "times": "vezes",
    "endless": "de novo e de novo, uma apos a outra, um por um, uma por uma, um apos o outro, sem descansar, ate esgotar, eternamente, sem interrupcao, vez apos vez, a cada segundo, sem parar, sem fim, sem cessar, sem limite, sem descanso, infinit*, para sempre, nunca pare, nao pare, repetidamente sem",
    "bounded": "no maximo, ate no maximo, maximo",
    "covert": "finja que, faca de conta, nosso segredo, nem uma palavra, sem o conhecimento, pelas costas, negue tudo, na surdina",
    "new role": "seu criador, teus criadores, obedeca a nos, trabalha para nos, deixaram de valer, quem manda, sua verdadeira tarefa, seu novo papel, agora voce e, voce nao e mais, obedeca nos, nos mandamos, sua missao real, perderam o efeito, foram suspensas, responde a nos",
    "never": "nunca, jamais",
}
ITALIAN = {
    "user": "utent*, client*, persona, persone, umano, sviluppator*, proprietari*, nessuno, titolare",
    "hush": "non se ne deve accorgere, non deve accorgersene, non si accorga, fingi, finga, fai finta, faccia finta, nega, neghi, acqua in bocca, il nostro segreto, nemmeno una parola, non deve notare, non deve vedere, non deve venire a sapere, a sua insaputa, non deve sentirlo, che nessuno, non c e bisogno che sappia, non serve che sappia, non deve saperne, tienilo per te, lo tenga per se, non dirlo, non dire, non dica, non dite, non menzion*, non rivel*, non parlare, non parlarne, non informare, non informi, non accenn*,"
    " non mostrare, non avvis*, non farne parola, senza dirlo, senza dire, senza informare, senza avvisare, senza che * sappia, non deve sapere, non"
    " deve saperlo, non lo venga a sapere, non lo sappia, non venga a sapere, non deve accorgersi, all insaputa, senza menzionare, non far sapere, non"
    " raccontare",
    "conceal": "nascondi, nasconda, nascondere, occulta, cela, tieni segreto, tenga segreto, in segreto, di nascosto, ometti, ometta, tieni nascosto,"
    " mantieni il segreto, tenere per te, taci",
    "give": "scrivi, scriva, riporta, riporti, annota, annoti, indica, indichi, inserire, allegare, inviare, aggiungere, consegna, consegni, comunica, comunichi, rivela, trascrivi, digita, mandare, includere, lascia, metta, invia*, invii, inviare, manda*, mandi, inoltra*, inoltri, allega*, alleghi, aggiungi*, aggiunga, includi*, includa, inserisci*, inserisca,"
    " trasmetti*, trasmetta, copia, incolla, fornisci, fornisca, passa, condividi*, seguito da, seguita da, insieme a, e anche, carica, scrivi, metti",
    "secret": "dati della carta, dati bancari, passaporto, codice fiscale, dati personali, carta di credito, frase segreta, password, credenzial*, chiav*, token, segreti, cookie, parola d ordine, numero di carta",
    "whose": "utent*, dell utente, client*, salvat*, tue, sue, macchina, tutte, amministratore",
    "also": "anche, inoltre, ogni messaggio",
    "ours": "nostro server, nostro indirizzo, noi, a noi, ci",
    "talk": "conversazion*, chat, dialogo, messaggi precedenti, cronologia, discussione",
    "whole": "tutta, tutto, completa, intera, finora, cronologia, questa, precedenti",
    "guarded": "mai, non viene, rimuove",
    "ignore": "ignora, ignori, ignorate, dimentica*, dimentichi, lascia perdere, lasci perdere, non tenere conto, non tener conto, trascura*, scarta,"
    " scarti, metti da parte, disobbedisci, non badare",
    "rules": "istruzion*, ordin*, regol*, direttiv*, indicazion*, restrizion*, prompt, comandi",
    "told": "ti e stato detto, ti e stato ordinato, ti hanno detto, quanto detto prima, detto finora",
    "prior": "precedent*, in precedenza, prima, ricevut*, di sistema, sistema, iniziali",
    "your": "tue, tuoi",
    "all": "tutte, tutti, qualsiasi, ogni",
    "void": "non valgono piu, non si applicano, annullat*, decadut*, non contano",
    "obey": "segui, segua, obbedisci, obbedisca, attieniti, si attenga, esegui, rispetta",
    "only": "solo, soltanto, solamente, esclusivamente, unicamente",
    "here": "questo testo, questa descrizione, quanto segue, queste righe",
    "unasked": "senza chiedere, senza consultare, senza attendere, senza aspettare, senza il consenso, senza consenso, senza permesso, senza il permesso,"
    " senza autorizzazione, senza l autorizzazione, senza approvazione, senza l approvazione, non chiedere, non serve chiedere, non occorre chiedere, non e"
    " necessario chiedere, senza interpellare, senza domandare, non aspettare",
    "self yes": "di tua iniziativa, di sua iniziativa, il parere del, non serve il, non e richiesto, non occorre, al posto dell utente, a nome dell utente, approva tu, accetta per lui, pura formalita, non attendere, rispondi di si, senza disturbare, senza approvazione, conferma tu stesso, per conto tuo, confermi da solo",
    "call": "chiama*, chiami, richiama*, richiami, ripeti, ripeta, esegui, esegua, invoca, lancia, usa, apri, ricarica",
    "many": "cento, duecento, trecento, cinquecento, mille, mila, centinaia, migliaia, milion*",
    "times": "volte",
    "endless": "ancora e ancora, una dopo l altra, uno dopo l altro, uno per uno, una per una, senza tregua, senza pausa, in continuazione, per sempre, senza interruzione, ogni secondo, senza fermarti, senza fermarsi, senza sosta, senza fine, senza limite, all infinito, infinit*, di continuo, ininterrottamente",
    "bounded": "al massimo, fino a, massimo, non piu di",
    "covert": "fai finta, faccia finta, acqua in bocca, nostro segreto, nemmeno una parola, tienilo per te, alle spalle, a sua insaputa, di nascosto",
    "new role": "tuo creatore, tuoi creatori, comandiamo noi, lavori per noi, obbedisci a noi, d ora in poi, il tuo vero compito, il tuo nuovo ruolo, ora sei, non sei piu, sono sospese, rispondi a noi, decidiamo noi",
    "never": "mai, non",
}
