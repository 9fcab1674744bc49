#!/bin/sh
# Checks a cluster before kube-proxy is replaced (README.md, "Install"), and changes nothing. Ends with 1 if something is in the way.
set -eu

# Labels of an earlier installation. During an installation they are its own.
labeled=$(kubectl get nodes -l sluice.dev/proxy -o name)
if [ -n "$labeled" ] && ! kubectl -n sluice-system get daemonset sluice >/dev/null 2>&1; then
  echo "These nodes have the label sluice.dev/proxy of an earlier installation, and would all change to sluice at once:" >&2
  echo "$labeled" >&2
  echo "Remove it first: kubectl label nodes --all sluice.dev/proxy-" >&2
  exit 1
fi

# What kube-proxy reads back of its own rules: its nft, in its image, which may have no other program.
read_map() { kubectl -n kube-system exec daemonset/kube-proxy -- nft -j list map "$1" kube-proxy service-ips 2>/dev/null; }
rules=$(read_map ip || read_map ip6 || true)
case $rules in
'') echo "kube-proxy has no rules that its own nft prints: it is not in mode nftables, or kubectl exec is not allowed" >&2 ;;
*'"tcp"'*) ;; # the Service kubernetes, at least
*)
  echo "WARNING: kube-proxy's image has no /etc/protocols, so that its nft prints 6 for tcp. When this kube-proxy restarts, it takes its own rules" >&2
  echo "for those of others, and deletes them. The installation does not restart it. Use another image before you return to it." >&2
  ;;
esac
