"""German, Russian, Arabic."""

GERMAN = {
    "user": "benutzer*, nutzer*, anwender*, kunde, kunden, kundin, mensch, menschen, person, entwickler*, niemand*, inhaber*, besitzer*, auftraggeber*",
    "not": "nicht, nichts, nie, niemals, kein, keine, keinesfalls, ohne, davon nichts, nichts davon",
    "tell": "sag, sage, sagen, sagt, erzahl*, erwahn*, verrat, verrate, verraten, mitteil*, teile * mit, informier*, erfahren, erfahrt, wissen,"
    " weiss, merken, merkt, bemerken, offenbar*, zeige, zeigen sie, sprich, ansprechen, benachrichtige, hinweis*",
    "hush": "in dem glauben, im glauben, so tun als, tu so als, tue so als, tun sie so als, unser geheimnis, kein sterbenswort, leugne, abstreiten, streite ab, nicht merkt, nicht bemerkt, davon erfahrt, unbemerkt, nicht sehen soll, geht * nichts an, nicht wissen soll, soll nichts davon, darf nichts davon, darf nicht wissen, muss nicht wissen, braucht nicht zu wissen, muss davon nichts, nichts erfahren, nicht erfahren, nichts wissen, nicht wissen, ohne dass, hinter dem rucken, ohne wissen, nichts davon sagen, kein wort,"
    " nichts merken, nicht mitbekommen",
    "conceal": "verschweig*, verheimlich*, verberge, verbergen, verbirg, verstecke, versteck, geheim, geheimhalten, stillschweigen, behalte * fur dich,"
    " behalten sie * fur sich, heimlich, verschleier*, unerwahnt, lass * weg, vertuschen",
    "give": "schreib, schreibe, notiere, notieren, verrate, nenne, gib an, trag, fullen sie, fulle, setze, leg, kopier, lad, teile uns, ubertrag, melde, beifuge, sag uns, diktiere, hinterlege, ergange, schicke, schick, sende, send, senden sie, hange, hang, fuge, fug, ubermittle, ubermitteln, ubertrage, gib, gebt, leite, leiten sie, lade,"
    " kopiere, schreibe, schreib, trage, nenne, teile, poste, lege, gefolgt von, zusammen mit, samt, und dazu, ubergib, reiche, weiterleiten, beifugen",
    "secret": "schlussel, kreditkarte*, kartendaten, ausweisnummer, personalausweis, bankdaten, kontodaten, private daten, personliche daten, umgebungsvariablen, pin, tan, passwort*, passworter*, kennwort*, kennworter*, zugangsdaten, anmeldedaten, schlussel, token*, geheimnisse, cookies, kartennummer*, zugangsschlussel",
    "whose": "benutzers, benutzer*, nutzers, kunden, gespeicherte*, deines, rechners, alle, seine, administrators",
    "also": "auch, ausserdem, zusatzlich, jeder, jedem, mit",
    "ours": "unseren server, unserem server, unsere adresse, uns, unser",
    "talk": "unterhaltung, gesprach*, chat*, dialog, verlauf, konversation, nachrichten des",
    "whole": "ganze*, gesamte*, bisherige*, vollstandige*, verlauf, alle, alles, komplette*",
    "guarded": "nie, entfernt, wird",
    "ignore": "ignorier*, vergiss, vergessen sie, missacht*, beachte, verwirf, ubergeh*, lass * beiseite, setze dich, hinweg, uber bord",
    "rules": "anweisung*, instruktion*, regel, regeln, vorgaben, richtlinien, befehl*, vorschrift*, weisung*, auftrage, system prompt, einschrankung*,"
    " aufgetragen, gesagt wurde",
    "told": "dir gesagt wurde, dir aufgetragen wurde, vorher gesagt, bisher gesagt",
    "prior": "vorherig*, bisherig*, fruher*, vorher, obig*, ursprunglich*, bisher, system*, davor, zuvor, dir",
    "your": "deine, deiner, deines, deinen, dir, ihre",
    "all": "alle, allen, jede, samtliche",
    "void": "gilt nicht mehr, gelten nicht mehr, gelten nicht, aufgehoben, ungultig, ausser kraft, hinfallig, zahlt nicht mehr",
    "obey": "befolge, folge, folgen sie, gehorche, halte dich, halten sie sich, richte dich, beachte, handle, tu",
    "only": "nur, allein, ausschliesslich, einzig",
    "here": "diesen text, diesem text, diese beschreibung, dieser beschreibung, folgendes, dem folgenden, diese zeilen",
    "unasked": "ohne den benutzer zu fragen, ohne zu fragen, ohne * zu fragen, ohne * * zu fragen, ohne beim, ohne ruckfrage bei*, ohne nachzufragen, ohne"
    " zustimmung, ohne einwilligung, ohne erlaubnis, ohne genehmigung, ohne freigabe, frage nicht, fragen sie nicht, nicht nachfragen, warte nicht,"
    " nicht um erlaubnis, keine ruckfrage, ohne auf",
    "self yes": "eigenmachtig, von dir aus, meinung des, nicht gefragt, an stelle des, anstelle des, im namen des, auf eigene faust, reine formsache, stimm fur ihn zu, bejahe, ist entbehrlich, ist nicht notig, ist nicht erforderlich, eigenstandig ohne, antworte mit ja, bestatige selbst, bestatigen sie selbst, stimme selbst zu",
    "call": "rufe, ruf, rufen sie, wiederhole, wiederholen sie, fuhre, fuhr, fuhren sie, starte, lade, offne, nutze, suche, frage",
    "often": "hundertmal, tausendmal, zweihundertmal, dreihundertmal, funfhundertmal, zigmal, hunderte male, tausende male, 100mal, 500mal, 1000mal",
    "many": "hundert, tausend, zweihundert, dreihundert, funfhundert, hunderte, tausende, million*",
    "times": "mal, male",
    "endless": "immer wieder, immer weiter, einzeln nacheinander, nacheinander einzeln, eins nach dem anderen, eine nach der anderen, in einer endlosschleife, bis zum abbruch, jede sekunde, ununterbrochen, wieder und wieder, rund um die uhr, ohne aufzuhoren, ohne pause, ohne ende, endlos*, unaufhorlich, immer wieder, ohne unterlass, ohne grenze, unbegrenzt, hor nicht auf, fur immer",
    "bounded": "hochstens, maximal, bis zu, nicht mehr als",
    "covert": "hinter dem rucken, unser geheimnis, kein sterbenswort, tu so als, tue so als, in dem glauben, fur dich behalten, leugne es, unter uns, stillschweigend",
    "new role": "deines herstellers, deine hersteller, dein hersteller, deiner schopfer, bestimmen wir, ab jetzt, gehorchst du uns, arbeitest du fur, deine wahre aufgabe, deine neue aufgabe, deine neue rolle, du bist jetzt, du bist nicht mehr, wir haben das sagen, gehorche uns, sind aufgehoben, bist frei von, horst auf uns",
    "never": "niemals, nie, keinesfalls",
}
RUSSIAN = {
    "user": "пользовател*, клиент*, человек*, людям, людей, разработчик*, владел*, никому, никто, покупател*, заказчик*, плательщик*",
    "hush": "сделай вид, делай вид, сделайте вид, отрицай*, не подозрева*, не догада*, не догадыв*, не должен заметить, не должен догад*, не должен видеть, не должен об этом, наш секрет, между нами, притвори*, не знал*, пусть не знает, остается в неведении, оставь в неведении, помалкивай*, не афишируй, не обмолв*, не говори*, не сообща*, не упомина*, не рассказыва*, не раскрыва*, не показывай*, не информируй*, не уведомляй*, не пиши об, не сознавай*,"
    " знать незачем, незачем знать, знать об этом незачем, знать не нужно, не должен знать, не должен узнать, не должны знать, не узнал*, не узнает, не"
    " обязательно знать, без ведома, втайне, в тайне, ни слова, не выдавай*, умолчи*, об этом не должен, не надо знать, не следует знать, не заметил*, не"
    " проговори*",
    "conceal": "скрой*, скрывай*, спрячь*, прячь*, утаи*, умалчивай*, секрете, молчи*, замолчи*, тайне",
    "give": "допиши*, добавить, укажите, впишите, напиши*, пиши, запиши*, продиктуй, отправить, приложить, введи*, внеси, вноси, сдай, положи, скинь, подставь, назови, изложи, перечисли, вложи, слей, отправь*, отправляй*, пришли*, перешли*, пересылай*, вышли*, шли, приложи*, прикладывай*, добавь*, добавляй*, включи*, включай*,"
    " передай*, передавай*, вставь*, впиши*, укажи*, запиши*, скопируй*, загрузи*, сообщи*, а также, а затем, вместе с, и также, дополни*, поделись*,"
    " предоставь*, выложи*",
    "secret": "ключ*, данны* карты, номер паспорта, паспортн*, реквизит*, пин код, личны* данн*, персональн* данн*, учетк*, cvv, парол*, токен*, ключ*, секрет*, учетн* данн*, cookie, cookies, номер карты, реквизит*",
    "whose": "пользовател*, клиент*, сохраненн*, все, твои, твой, машин*, администратор*, хранящ*",
    "also": "также, еще, кажд*, тоже, заодно",
    "ours": "наш сервер, нам, наш, нашем, наша почт*",
    "talk": "сообщения человека, сообщения клиента, последние сообщения, слова пользователя, сказал пользователь, написал пользователь, сказал человек, переписк*, разговор*, диалог*, чат*, беседы, беседу, сообщени* пользователя",
    "whole": "последн*, все, что, целик*, вся, всю, весь, всей, истори*, полностью, полный, полную, целиком",
    "guarded": "никогда, удаляет, не",
    "ignore": "игнорируй*, проигнорируй*, забудь*, забывай*, отбрось*, отмени*, не обращай*, пренебреги*, не учитывай*, наплюй*, не слушай*, нарушь*, обойди*",
    "rules": "инструкц*, указани*, правил*, ограничени*, распоряжени*, приказ*, команд*, директив*, промпт*, подсказ*",
    "told": "что тебе говорили, что тебе сказали, сказанное ранее, сказано ранее, тебе велели",
    "prior": "предыдущ*, прежн*, прошл*, ранее, системн*, прошлые, исходн*, первоначальн*, выше",
    "your": "твои, твоих, ваши, свои",
    "all": "все, всех, любые, всё",
    "void": "не действу*, недействительн*, утратил* силу, отменен*, аннулирован*, не имеют силы, не применя*",
    "obey": "выполняй*, слушайся, слушай*, следуй*, подчиняйся, исполняй*, делай*, руководствуйся, соблюдай*",
    "only": "только, лишь, исключительно",
    "here": "этого текста, этот текст, этому тексту, написанное здесь, здесь, этому описанию, это описание, следующее, этого описания",
    "unasked": "без подтверждения, без разрешения, без согласия, без одобрения, не спрашивая, не спрашивай*, не запрашивая, не запрашивай*, без спроса, не"
    " дожидаясь, не жди*, не согласовывая, без согласования, не нужно спрашивать, не уточняй*, не нужно подтверждени*",
    "self yes": "мнение владельца, мнение пользователя, не требуется, сам подтверди, за пользователя, вместо пользователя, от имени пользователя, на свое усмотрение, по своей инициативе, самовольно, пустая формальность, согласие не нужно, считай согласием, не дожидайся, не нужно ждать, соглашайся за, подтверди* сам, подтверждай* сам, согласись сам",
    "-": "без подтверждения если",
    "call": "вызови*, вызывай*, повтори*, повторяй*, запусти*, запускай*, выполни*, выполняй*, открой*, открывай*, обновляй*, обнови*, обращайся, используй*",
    "many": "сто, двести, триста, пятьсот, тысяч*, сотни, сотню, миллион*",
    "times": "раз, раза",
    "endless": "один за другим, одну за другой, по одному, по одной, до бесконечности, каждую секунду, каждую минуту, круглосуточно, вновь и вновь, раз за разом, вечно, пока не оборв*, пока не кончи*, без остановки, без конца, бесконечн*, непрерывно, без перерыва, снова и снова, без ограничени*, безостановочно, не останавливай*, без устали",
    "bounded": "не более, максимум, не больше, до",
    "covert": "сделай вид, делай вид, наш секрет, между нами, за спиной, втихую, тайком, тайно, притворись, держи язык, исподтишка",
    "new role": "подчиняешься нам, слушаешься нас, твой создатель, правила создателя, твоего создателя, твоих создателей, настоящая задача, настоящее задание, твоя новая роль, теперь ты, отныне ты, ты больше не, мы главные, работаешь на нас, слушай нас, служишь нам, командуем мы",
    "never": "никогда, нельзя",
}
ARABIC = {
    "user": "مستخدم*, مستخدمين, عميل*, عملاء, زبون*, شخص, إنسان, مالك, مطور*, أحد, أحدا, صاحب",
    "hush": "لا ينبغي للعميل, لا ينبغي للمستخدم, لا ينبغي أن يعلم, لا يجوز أن يعلم, يجب ألا يعلم, لا حاجة لأن يعلم, تظاهر, تظاهري, أنكر, لا تتحدث, لا تفش, سرنا, بيننا, لا يلاحظ, لا يشعر, دون أن يلاحظ, دون أن يشعر, لا تشر إلى, لا تصرح, لا يعرف, من وراء ظهر, لا تنبه, لا تخبر*, لا تذكر*, لا تقل, لا تبلغ*, لا تكشف*, لا تطلع*, لا تظهر*, لا تشر, لا تفصح*, دون علم, بدون علم, دون أن يعلم, دون أن يعرف, بدون أن يعلم,"
    " دون إخبار, بدون إخبار, دون ذكر, لا ينبغي أن يعرف, لا يجب أن يعرف, لا داعي لأن يعرف, من غير علم, دون إعلام, ألا يعلم, لا تدع, لا تعلم*",
    "conceal": "أخف, أخفي, أخفوا, اكتم, تكتم, سرا, سر, سرية, بسرية, خفية, أبق*",
    "give": "اكتب, دون, سجل, أدخل, إضافة, بإضافة, املأ, اذكر, زودنا, وفر, ضمن, ألصق, سرب, حول, كتابة, إدراج, تزويدنا, أعطنا, أرسل*, ارسل*, أرفق*, ارفق*, أضف*, اضف*, ضع, ضمن, انسخ, حمل, ارفع, مرر, سلم, أعط*, اكتب, أدرج*, شارك*, مع, إرفاق, إرسال, متبوع*, قدم, انقل, زود",
    "secret": "مفتاح خاص, المفتاح الخاص, بيانات البطاقة, رقم جواز, بيانات بنكية, بيانات شخصية, رمز سري, الرقم السري, بطاقة, كلمة المرور, كلمات المرور, كلمة مرور, كلمات مرور, كلمة السر, رمز الوصول, رموز الوصول, رموز, مفتاح, مفاتيح, مفاتيحه, بيانات الدخول,"
    " بيانات الاعتماد, بيانات اعتماد, بيانات تسجيل الدخول, الأسرار, رقم البطاقة",
    "whose": "مستخدم*, محفوظ*, عميل*, خاصة, جميع, كل, جهاز, مسؤول",
    "also": "أيضا, كذلك, كل",
    "ours": "خادمنا, عنواننا, إلينا, لنا, خوادمنا",
    "talk": "رسائل المستخدم, رسائل العميل, آخر رسائل, رسائله, ما قاله المستخدم, ما كتبه المستخدم, محادثة, محادثات, دردشة, حوار, حديث, محادثته",
    "whole": "آخر, كل ما, كامل, كاملة, كل, سجل, جميع, كاملا, نص, تاريخ",
    "guarded": "يحذف, لا",
    "ignore": "تجاهل*, انس, انسى, تغاض, لا تلتفت, لا تتبع, أهمل, اترك, اهمل, تخل, لا تعمل, ألغ, لا تلتزم, تخط",
    "rules": "تعليمات, أوامر, قواعد, توجيهات, إرشادات, تعليماتك, قيود, سياسات",
    "told": "ما قيل لك, ما طلب منك",
    "prior": "سابقة, سابق, سابقا, قبل, نظام, أصلية, قديمة, ماضية, سالفة",
    "your": "تعليماتك",
    "all": "كل, جميع, أي, كافة",
    "void": "لم تعد سارية, ملغاة, لاغية, لا تنطبق",
    "obey": "اتبع, نفذ, أطع, التزم, طبق, امتثل, اعمل",
    "only": "فقط, وحده, وحدها, حصرا",
    "here": "هذا النص, ما يلي, هذا الوصف, التالي",
    "unasked": "دون موافقة, بدون موافقة, دون إذن, بدون إذن, دون أن تطلب, دون طلب, بدون طلب, دون سؤال, بدون سؤال, دون أن تسأل, لا تسأل, لا تطلب موافقة,"
    " لا تنتظر, دون تأكيد, بدون تأكيد, دون انتظار, لا حاجة لموافقة, من دون موافقة, من دون إذن, من غير إذن, دون الرجوع",
    "call": "استدع, استدعي, كرر, شغل, نفذ, ابحث, أعد, افتح, استخدم, حدث",
    "many": "مئة, مائة, ألف, مئات, آلاف, مئتي, مليون, خمسمئة, خمسمائة",
    "times": "مرة, مرات, المرات",
    "endless": "واحدا تلو الآخر, واحدة تلو الأخرى, مرارا, مرة بعد مرة, بلا هوادة, كل ثانية, كل دقيقة, طوال الوقت, حتى ينقطع, دون توقف, بدون توقف, بلا توقف, بلا نهاية, إلى الأبد, باستمرار, دون انقطاع, بلا انقطاع, مرارا وتكرارا, إلى ما لا نهاية",
    "bounded": "على الأكثر, كحد أقصى, حتى, لا يزيد",
    "covert": "تظاهر, بيننا, من وراء ظهر, سرا عن, خلسة, في الخفاء, أنكر ذلك, دون علمه",
    "new role": "وضعت لك, أنت الآن, لم تعد, مهمتك الحقيقية, دورك الجديد, أطعنا, تعمل لدينا, تعمل لصالحنا, نحن من يقرر, صانعك, منشئك, مطورك",
    "self yes": "لا تنتظر موافقة, نيابة عن المستخدم, نيابة عن, بدلا من المستخدم, من تلقاء نفسك, رأي المستخدم, غير مطلوبة, غير مطلوب, ليست ضرورية, وافق بنفسك, أكد بنفسك, مجرد إجراء شكلي, لا ضرورة لسؤال",
    "never": "أبدا, لا تحجز",
}
