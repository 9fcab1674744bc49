package nftables

import "testing"

const global = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  service-cidrs        10.96.0.0/12 fd00:10:96::/112
  masquerade-mark      0x4000

`

const webService = global + `service shop/web
  port http  10.96.0.10:80/TCP   ClusterIP     masquerade=outside balance=random
    forward
      10.244.0.1:9000   weight 1
      10.244.0.2:9000   weight 3
  port http  [fd00:10:96::a]:80/TCP   ClusterIP     masquerade=outside balance=random
    forward
      [fd00:10:244::1]:9000   weight 1
      [fd00:10:244::2]:9000   weight 3
`

func TestListing(t *testing.T) {
	d := newBed(t, 2)
	d.apply(webService)
	out, err := d.nft("", "list", "ruleset")
	t.Log(out, err)
	t.Log(d.ask(d.client, "tcp", "10.96.0.10:80"))
	t.Log(d.ask(d.client, "tcp", "[fd00:10:96::a]:80"))
	t.Log(d.ask(d.pods[0], "tcp", "10.96.0.10:80"))
	t.Log(d.ask(d.lab.Node, "tcp", "10.96.0.10:80"))
	d.refused(d.client, "tcp", "10.96.0.10:81")
}
