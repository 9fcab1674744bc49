package nodes

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// flow is a connection: who makes it, where to, and what its server says, a regular expression: its name, and that of the source
// it saw.
type flow struct{ from, to, want string }

const denied = "refused|timedOut|unreachable"

// connectivity is what works without policies. web-1, client-1 and other are on n1, web-2 and client-2 on n2; other has the port
// 9080 of its node. Services: web with the NodePort 31080, local with 31081 and external traffic policy Local, other.
var connectivity = []flow{
	{"client-1", "{web-1}:8080", "web-1 client-1"},
	{"client-1", "{web-2}:8080", "web-2 client-1"},
	{"client-1", "{web}:80", "web-[12] client-1"},
	{"client-1", "web.a.svc.cluster.local:80", "web-[12] client-1"},
	{"client-1", "{local}:80", "web-[12] client-1"},
	{"client-1", "{n1}:31080", `web-[12] \S+`},
	{"client-1", "{n2}:31080", `web-[12] \S+`},
	{"client-1", "{n1}:9080", `other \S+`},
	{"client-2", "{n1}:9080", `other \S+`},
	{"client-1", "{outside}:8080", `\S+ (n1|client-1)`},
	{"client-2", "{web}:80", "web-[12] client-2"},
	{"web-1", "{web}:80", `web-1 \S+|web-2 web-1`}, // to itself too
	{"n1", "{web}:80", "web-[12] n1"},
	{"n1", "{n1}:31080", "web-[12] n1"},
	{"outside", "{n1}:31080", "web-[12] n1"},
	{"outside", "{n2}:31080", "web-[12] n2"},
	{"outside", "{n1}:31081", "web-1 outside"},
	{"outside", "{n2}:31081", "web-2 outside"},
	{"outside", "{n1}:9080", "other outside"},
	{"outside", "{n2}:9080", denied},
}

// flows are the Pods and Services that connect to each other.
type flows struct {
	*cluster
	namespace map[string]string // of Pods
	names     map[string]string // by address
	addrs     *strings.Replacer // of what is in braces
}

func newFlows(c *cluster) *flows {
	c.Helper()
	f := &flows{cluster: c, namespace: map[string]string{"client-1": "a", "client-2": "b", "web-1": "a", "web-2": "a", "other": "a"}}
	var objects strings.Builder
	objects.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n")
	for _, p := range []struct{ name, node, labels, port string }{
		{"client-1", "n1", "role: client", ""}, {"client-2", "n2", "role: client", ""}, {"web-1", "n1", "app: web", ""}, {"web-2", "n2", "app: web", ""},
		{"other", "n1", "app: other", "{containerPort: 8080, hostPort: 9080}"},
	} {
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, labels: {%s}}\nspec:\n  nodeName: %s\n  terminationGracePeriodSeconds: 1\n"+
			"  containers: [{name: load, image: %q, args: [serve], ports: [%s], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]\n",
			p.name, f.namespace[p.name], p.labels, p.node, programs.Load, p.port)
	}
	for name, spec := range map[string]string{
		"web":   "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 31080}]",
		"local": "type: NodePort, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 31081}]",
		"other": "selector: {app: other}, ports: [{port: 80, targetPort: 8080}]",
	} {
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: a}\nspec: {%s}\n", name, spec)
	}
	c.must(c.Apply(c.Context(), objects.String()))
	for _, ns := range []string{"a", "b"} {
		c.kubectl("-n", ns, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")
	}
	p, err := c.Outside.Start(exec.Command(c.programs.Load, "serve"))
	c.must(err)
	c.Cleanup(p.Kill)
	f.names = f.addresses()
	pairs := []string{"{n1}", c.Node("n1").Addrs[0].String(), "{n2}", c.Node("n2").Addrs[0].String(), "{outside}", c.Outside.Addrs[0].String()}
	for addr, name := range f.names {
		if strings.HasPrefix(name, "web-") {
			pairs = append(pairs, "{"+name+"}", addr)
		}
	}
	for _, s := range []string{"web", "local", "other"} {
		pairs = append(pairs, "{"+s+"}", c.kubectl("-n", "a", "get", "service", s, "-o", "jsonpath={.spec.clusterIP}"))
	}
	f.addrs = strings.NewReplacer(pairs...)
	return f
}

// addresses are the names of all addresses in the cluster: of Pods and nodes, by address.
func (f *flows) addresses() map[string]string {
	f.Helper()
	names := map[string]string{f.Outside.Addrs[0].String(): "outside"}
	for _, n := range f.Nodes {
		out, err := n.Exec(f.Context(), "ip", "-o", "-4", "addr")
		f.must(err)
		for line := range strings.Lines(out) {
			addr, _, _ := strings.Cut(strings.Fields(line)[3], "/")
			names[addr] = n.Name
		}
	}
	for _, ns := range []string{"a", "b"} {
		for line := range strings.Lines(f.kubectl("-n", ns, "get", "pods", "-o", `jsonpath={range .items[*]}{.status.podIP} {.metadata.name}{"\n"}{end}`)) {
			if ip, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				names[ip] = name
			}
		}
	}
	return names
}

// expect waits until all flows are as they should be, and returns what the servers said.
func (f *flows) expect(when string, all ...flow) map[flow][]string {
	f.Helper()
	var said map[flow][]string
	f.until(90*time.Second, when, func() string {
		said = f.ask(all)
		var wrong strings.Builder
		for _, flow := range all {
			for _, answer := range said[flow] {
				if !regexp.MustCompile("^(" + flow.want + ")$").MatchString(answer) {
					fmt.Fprintf(&wrong, "%s to %s: %q, want %s\n", flow.from, flow.to, said[flow], flow.want)
					break
				}
			}
		}
		return wrong.String()
	})
	return said
}

// times is how often each connection is made: a Service may lead to another server each time.
const times = 4

// ask makes all connections, those of one client at once.
func (f *flows) ask(all []flow) map[flow][]string {
	f.Helper()
	said := map[flow][]string{}
	for _, client := range []string{"client-1", "client-2", "web-1", "other", "n1", "outside"} {
		var asked []flow
		var addrs []string
		for _, flow := range all {
			for i := 0; flow.from == client && i < times; i++ {
				asked, addrs = append(asked, flow), append(addrs, f.addrs.Replace(flow.to))
			}
		}
		if len(asked) == 0 {
			continue
		}
		answers := strings.Split(strings.TrimSpace(f.askFrom(client, addrs)), "\n")
		for i, flow := range asked {
			answer := fmt.Sprint("no line of ", answers)
			if len(answers) == len(asked) {
				answer = answers[i]
			}
			if server, source, ok := strings.Cut(answer, " "); ok && f.names[source] != "" {
				answer = server + " " + f.names[source]
			}
			if !slices.Contains(said[flow], answer) {
				said[flow] = append(said[flow], answer)
			}
		}
	}
	return said
}

// askFrom returns what `load ask` prints.
func (f *flows) askFrom(client string, addrs []string) string {
	f.Helper()
	var out string
	var err error
	switch ns := f.namespace[client]; {
	case ns != "":
		out, err = f.Kubectl(f.Context(), "", append([]string{"-n", ns, "exec", client, "--", "/load", "ask"}, addrs...)...)
	case client == "outside":
		out, err = f.Outside.Run("", append([]string{f.programs.Load, "ask"}, addrs...)...)
	default:
		out, err = f.Node(client).Exec(f.Context(), append([]string{f.programs.Load, "ask"}, addrs...)...)
	}
	if err != nil {
		return err.Error()
	}
	return out
}
