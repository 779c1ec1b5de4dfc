"""Providers become drafts until somebody has confirmed where their keys go; those of before are confirmed as they are."""

from ipaddress import ip_address
from urllib.parse import urlsplit

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models.sealing import unseal
from subagents.domain.destination import fingerprint
from subagents.domain.model_options import not_allowed, spelled

LOOPBACK = ["127.0.0.0/8", "::1/128"]
INSIDE = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]


def confirm_as_they_are(apps, schema_editor):
    """What worked before goes on; one with an option that is not allowed stays as it is, and becomes a draft."""
    for provider in apps.get_model("subagents", "Provider").objects.all():
        provider.allowed_networks = networks_of(provider.kind, provider.base_url)
        rows = [{}, *(model.overrides for model in provider.models.all())]
        fine = all(
            isinstance(own, dict) and isinstance(provider.options, dict)
            and not_allowed(provider.kind, spelled(provider.options) | spelled(own)) is None
            for own in rows
        )
        headers = headers_of(provider)
        if fine and headers is not None:
            provider.confirmed_at = timezone.now()
            provider.confirmed_destination = fingerprint(
                provider.kind, provider.base_url, provider.allowed_networks, headers, provider.options
            )
        provider.save()


def headers_of(provider):
    """None where they no longer open: then nothing could be sent anyway."""
    try:
        place = f"subagents.provider:{provider.uid}:sealed_headers"
        return unseal(provider.sealed_headers, place=place) if provider.sealed_headers else {}
    except ConfigInvalid:
        return None


def networks_of(kind, url):
    """The networks that the address of before lies in; a name without a dot is one of the inside."""
    if not url:
        return LOOPBACK if kind == "ollama" else []
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        if host == "localhost" or host.endswith(".localhost"):
            return LOOPBACK
        return [] if "." in host else LOOPBACK + INSIDE
    return [] if address.is_global else [f"{address}/{address.max_prefixlen}"]


class Migration(migrations.Migration):

    dependencies = [
        ('subagents', '0004_requester'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='historicalprovider',
            name='allowed_networks',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text='Private networks that this provider may be reached in, e.g. ["127.0.0.1/32"]. Empty: public addresses only.'),
        ),
        migrations.AddField(
            model_name='historicalprovider',
            name='confirmed_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name='historicalprovider',
            name='confirmed_by',
            field=models.ForeignKey(blank=True, db_constraint=False, editable=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='historicalprovider',
            name='confirmed_destination',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name='provider',
            name='allowed_networks',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text='Private networks that this provider may be reached in, e.g. ["127.0.0.1/32"]. Empty: public addresses only.'),
        ),
        migrations.AddField(
            model_name='provider',
            name='confirmed_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name='provider',
            name='confirmed_by',
            field=models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='provider',
            name='confirmed_destination',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=64),
        ),
        migrations.RunPython(confirm_as_they_are, migrations.RunPython.noop),
    ]
