package plugintest_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomScenario returns a scenario with n changes at random, and a decision after each.
func randomScenario(random *rand.Rand, settings []string, n int) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	zones := []string{"zone-a", "zone-b", "zone-c"}
	internal, external := false, false // traffic policies that are Local
	setPolicies := func() {
		internal, external = random.IntN(3) == 0, random.IntN(3) == 0
		name := map[bool]string{false: "Cluster", true: "Local"}
		line("service internalTrafficPolicy=%s externalTrafficPolicy=%s", name[internal], name[external])
	}
	setSettings := func() {
		if s := settings[random.IntN(len(settings))]; s != "" {
			line("settings `%s`", s)
		}
	}
	setSettings()
	line("service shop port=%s family=%s label:tier=gold annotation:owner=jo", pick("http", `""`), pick("IPv4", "IPv4", "IPv6"))
	if random.IntN(3) == 0 {
		setPolicies()
	}
	nodes := 1 + random.IntN(5)
	for i := range nodes {
		line("node n%d zone=%s cpu=%d", i, zones[i%len(zones)], 1+random.IntN(8))
	}
	var endpoints []string
	add := func() {
		name := fmt.Sprintf("web-%d", len(endpoints))
		endpoints = append(endpoints, name)
		line("endpoint %s node=n%d", name, random.IntN(nodes))
	}
	for range 1 + random.IntN(6) {
		add()
	}
	gone := map[string]bool{}
	one := func() string {
		for range 20 {
			if name := pick(endpoints...); !gone[name] {
				return name
			}
		}
		add()
		return endpoints[len(endpoints)-1]
	}
	for range n {
		switch random.IntN(20) {
		case 0, 1:
			line("endpoint %s ready=%s", one(), pick("true", "false"))
		case 2, 3:
			line("endpoint %s terminating=true serving=%s", one(), pick("true", "true", "false"))
		case 4:
			line("endpoint %s terminating=false ready=true", one())
		case 5:
			name := one()
			gone[name] = true
			line("remove %s", name)
		case 6, 7:
			add()
		case 8:
			line("endpoint %s zoneHints=%s nodeHints=%s", one(), pick(`""`, "zone-a", "zone-b,zone-a"), pick(`""`, "n0", "n1"))
		case 9:
			line("endpoint %s label:track=%s annotation:example.com/capacity=%d cpu=%d", one(), pick("stable", "canary", `""`), random.IntN(5), 100*random.IntN(5))
			line("endpoint %s load:cpu_utilization=0.%d load:rps_fractional=%s load:utilization/queue=%s", one(), random.IntN(10), pick(`""`, "40", "120.5"), pick(`""`, "0.3", "2"))
		case 10:
			line("connections %s=%d %s", one(), random.IntN(50), pick("", "# the others have none"))
		case 11:
			line("traffic %d", random.IntN(100))
		case 12, 13:
			line("%s %s", pick("refuse", "silent", "answer", "answer"), one())
		case 14:
			line("restart")
		case 15:
			setSettings()
		case 16:
			line("node n%d zone=%s ready=%s", random.IntN(nodes), pick(zones...), pick("true", "false"))
		case 17:
			line("policy ignoreHints=%s onFailure=%s", pick("true", "false"), pick("LastGood", "Default"))
		case 18:
			setPolicies()
			line("service affinity=%ds", random.IntN(3))
		case 19:
			line("after %dms", 1+random.IntN(400_000))
		}
		if random.IntN(2) == 0 {
			line("after %s", pick("100ms", "1s", "1s", "1700ms", "5s", "10s", "30s", "1m"))
		}
		if !internal || external {
			line("decide")
		}
		if internal || external {
			line("decide pool=local")
		}
	}
	for _, pool := range []string{"cluster", "local"} {
		if used := internal || external; pool == "local" && used || pool == "cluster" && !(internal && !external) {
			line("calls pool=%s", pool)
		}
	}
	return b.String()
}
