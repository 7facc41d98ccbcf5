#!/bin/sh
# Write the Prometheus operator's rules anew from deploy/alerts.yml: the same groups, as the kind that the operator reads.
#
# usage: scripts/alerts.sh
set -eu
cd "$(dirname "$0")/../deploy"
{
    cat <<'HEAD'
# Written by scripts/alerts.sh from deploy/alerts.yml: change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ramjet
  labels: {app.kubernetes.io/name: ramjet}
spec:
HEAD
    sed -e '/^#/d' -e 's/^\(.\)/  \1/' alerts.yml
} >kubernetes/monitoring/alerts.yaml
