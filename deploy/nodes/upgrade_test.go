package nodes

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// previousTag is the release before this one, and previousCommit what it is built from: it is not published.
const previousTag, previousCommit = "v0.1.0", "2ce802e03ca66bafb89e28cce771af8d7e7faa57"

// policy keeps connections to Services of the namespace web that choose it in the zone of their client.
const policy = `
plugins: [{name: locality, file: /plugins/locality.wasm}]
policies: [{name: in-zone, plugins: [{name: locality, settings: {mode: priority}}]}]
allow: [{namespaces: [web], policies: [in-zone]}]
`

// buildPrevious builds the release before this one from its commit, and returns the folder of its sources, and its image.
func buildPrevious(dir string) (sources, archive string, err error) {
	sources, archive = filepath.Join(dir, "previous"), filepath.Join(dir, "previous.tar")
	script := `mkdir "$0" && git archive ` + previousCommit + ` | tar -x -C "$0" && cd "$0" &&
		go run ./deploy/image -compiled "" -o "$0.image" -tar "$1" -version ` + previousTag
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script, sources, archive)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build %s, which needs the history of the repository: %w\n%s", previousTag, err, out)
	}
	return sources, archive, nil
}

// upgrades goes back to the release before and returns, as a clone of each says, and tries a version that crashes: under load,
// with a policy that has to be in force all the time. It returns the sources of the release before.
func (c *cluster) upgrades(dir string) string {
	c.Helper()
	sources, archive, err := buildPrevious(dir)
	c.must(err)
	c.kubectl("-n", "web", "annotate", "service", "web", "sluice.dev/policy=in-zone")
	c.until(time.Minute, "the policy is in force on all nodes", c.undecided)

	load := c.load()
	const overlay = "deploy/kustomize/overlays/mine"
	c.must(os.CopyFS(filepath.Join(sources, overlay), os.DirFS(filepath.Join(c.Work, overlay))))
	here := c.Work
	c.Work = sources
	c.must(c.Upgrade(c.Context(), archive, previousTag))
	c.Work = here
	c.expectAdopted("downgraded", previousTag)
	c.expectInZone(load.end("downgrade to "+previousTag, false))

	load = c.load()
	c.block("Upgrade", 1, "NEXT="+c.install.Tag)
	c.expectAdopted("upgraded", c.install.Tag)
	c.expectInZone(load.end("upgrade from "+previousTag, false))

	load = c.load()
	c.crash()
	c.expectInZone(load.end("a version that crashes, and back", false))
	c.kubectl("-n", "web", "annotate", "service", "web", "sluice.dev/policy-")
	return sources
}

// undecided names a worker on which no policy decides about the Service web.
func (c *cluster) undecided() string {
	for _, n := range c.Workers() {
		pod := c.kubectl("-n", "sluice-system", "get", "pods", "-l", sluicePods, "--field-selector=spec.nodeName="+n.Name, "-o", "name")
		out, err := c.Kubectl(c.Context(), "", "-n", "sluice-system", "exec", strings.TrimSpace(pod), "--", "/sluice", "explain", "-n", "web", "web")
		if err != nil || !strings.Contains(out, "decided by policy") {
			return fmt.Sprintf("%s: %v\n%s", n.Name, err, out)
		}
	}
	return ""
}

// adopted is what a Pod logs that has found the rules of the other version. These versions write one message nevertheless: the
// other one makes hairpin entries for the endpoints of all nodes (TestManyHairpinEntriesAreDeletedInParts: and nothing else).
var adopted = regexp.MustCompile(`"netlink_messages":[01],`)

// expectAdopted: all Pods have the version, have read the checkpoint of the other, and have adopted its rules.
func (c *cluster) expectAdopted(when, tag string) {
	c.Helper()
	c.expectPods(when, "sluice-system", sluicePods, fmt.Sprintf("cp sluice:%[1]s\nn1 sluice:%[1]s\nn2 sluice:%[1]s", tag))
	var allowed []string
	if tag == previousTag { // to which a plugin that is still being compiled has failed
		allowed = []string{"others do not wait for it"}
	}
	logs := c.logs(allowed...)
	if len(adopted.FindAllString(logs, -1)) < len(c.Nodes) || strings.Contains(logs, "replacing nftables table") {
		c.Errorf("%s: the new Pods wrote to the kernel:\n%s", when, logs)
	}
	if strings.Contains(logs, "drains in progress start over") {
		c.Errorf("%s: a checkpoint was not read:\n%s", when, logs)
	}
	c.noWarnings()
}

// expectInZone: each client met servers in its own zone only, though there are others.
func (c *cluster) expectInZone(servers map[string][]string) {
	c.Helper()
	out := c.kubectl("-n", "web", "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}`)
	zone := map[string]string{}
	for line := range strings.Lines(out) {
		pod, node, _ := strings.Cut(strings.TrimSpace(line), " ")
		zone[pod] = c.Node(node).Zone
	}
	if len(slices.Compact(slices.Sorted(maps.Values(zone)))) < 2 {
		c.Fatalf("all servers are in one zone:\n%s", out)
	}
	for client, node := range clientNode {
		for _, server := range servers[client] {
			if zone[server] != c.Node(node).Zone {
				c.Errorf("the policy was not in force: %s on %s met %s:\n%s", client, node, server, out)
			}
		}
	}
}

// crash tries a version that crashes: it gets no further than the first node, whose rules go on. Then it goes back as
// deploy/README.md says.
func (c *cluster) crash() {
	c.Helper()
	c.kubectl("-n", "sluice-system", "set", "image", "daemonset/sluice", "sluice="+programs.Load)
	var crashing, others [][]string // node, image, restarts, ready
	c.until(3*time.Minute, "the version crashes again and again", func() string {
		crashing, others = nil, nil
		out := c.kubectl("-n", "sluice-system", "get", "pods", "-l", sluicePods, "-o", `jsonpath={range .items[*]}{.spec.nodeName}|{.spec.containers[0].image}|`+
			`{.status.containerStatuses[0].restartCount}|{.status.containerStatuses[0].ready}{"\n"}{end}`)
		for line := range strings.Lines(out) {
			if pod := strings.Split(strings.TrimSpace(line), "|"); pod[1] == programs.Load { // a new Pod has no node yet
				crashing = append(crashing, pod)
			} else {
				others = append(others, pod)
			}
		}
		for _, pod := range crashing {
			if n, _ := strconv.Atoi(pod[2]); n >= 2 {
				return ""
			}
		}
		return out
	})
	if len(crashing) != 1 || len(others) != len(c.Nodes)-1 || slices.ContainsFunc(others, func(pod []string) bool { return pod[3] != "true" }) {
		c.Fatalf("a version that crashes is on %q; others are %q", crashing, others)
	}
	c.expectTables("a version that crashes", "sluice", "kube-proxy")
	if wrong := c.nodePortAnswers(c.Node(crashing[0][0])); wrong != "" {
		c.Errorf("a version that crashes: %s", wrong)
	}
	c.block("Upgrade", 2)
	c.expectPods("back from a version that crashes", "sluice-system", sluicePods, "cp sluice:v1\nn1 sluice:v1\nn2 sluice:v1")
}
