package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// hostile is a name that would change what a terminal shows: it forges lines and rows, erases others, and reverses and
// hides text.
const hostile = "x\nforged 1\r\nforged 2\x1b[2K\x1b[1A\rforged 3\t\v\fforged 4\x00\x07\x7f\u0085forged 5\u009b31m\u202e\u2066\u200b\ufeff\u00ad\u2028forged 6\u2029\U000e0041 \\ \" %s"

// checkOutputText checks that what a command has printed has no characters but printable ones, and no forged line.
func checkOutputText(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		bad := strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) })
		if bad || !utf8.ValidString(line) || strings.HasPrefix(strings.TrimSpace(line), "forged") {
			t.Errorf("%s prints %q", what, line)
		}
	}
}

// object is an object of a manifest.
type object = map[string]any

// hostileManifests are objects that have the hostile name wherever one fits, next to valid ones.
func hostileManifests() []object {
	meta := func(name, namespace string, more object) object {
		m := object{"name": name, "namespace": namespace}
		maps.Copy(m, more)
		return m
	}
	bad := func(kind, version string, more object) object {
		o := object{"apiVersion": version, "kind": kind, hostile: hostile, "metadata": meta(hostile, hostile, object{hostile: 1})}
		maps.Copy(o, more)
		return o
	}
	endpoint := func(addr string) object {
		return object{"addresses": []string{addr}, "nodeName": hostile, "zone": hostile, "conditions": object{"ready": true}, hostile: 1,
			"targetRef": object{"kind": "Pod", "name": hostile}, "hints": object{"forZones": []object{{"name": hostile}}}}
	}
	return []object{
		{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "a1", "labels": object{"topology.kubernetes.io/zone": hostile}}},
		{"apiVersion": "v1", "kind": "Service", "metadata": meta("web", "shop", object{"labels": object{"app": "web"}, "annotations": object{hostile: hostile}}),
			"spec": object{"clusterIP": "10.96.0.10", "clusterIPs": []string{"10.96.0.10"}, hostile: 1, "externalIPs": []string{hostile},
				"sessionAffinity": hostile, "internalTrafficPolicy": hostile, "ports": []object{{"name": "http", "port": 80, "protocol": "TCP", "appProtocol": hostile}, {"name": hostile, "port": 81}}}},
		{"apiVersion": "v1", "kind": "Service", "metadata": meta("other", "shop", object{"annotations": object{"sluice.dev/policy": hostile}}),
			"spec": object{"clusterIP": "10.96.0.11", "ports": []object{{"port": 80}}}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("web-1", "shop", object{"labels": object{"kubernetes.io/service-name": "web"}}),
			"addressType": "IPv4", "ports": []object{{"name": "http", "port": 8080}, {"name": hostile, "port": 1}},
			"endpoints": []object{endpoint("10.244.1.1"), endpoint("10.244.1.2"), endpoint(hostile)}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("lost", "shop", object{"labels": object{"kubernetes.io/service-name": hostile}}),
			"addressType": hostile},
		bad("Service", "v1", nil), bad("Node", "v1", nil), bad("EndpointSlice", "discovery.k8s.io/v1", nil), bad("ServiceCIDR", "networking.k8s.io/v1", nil),
		bad(hostile, "v1", nil), bad("Service", hostile, nil), bad("Service", "v1", object{"spec": hostile}),
	}
}

func TestNoCommandPrintsHostileNamesUnescaped(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, v any) string {
		text, isText := v.(string)
		if !isText {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fileName := strings.ReplaceAll(hostile, "\x00", "")
	write("manifests/a.json", object{"apiVersion": "v1", "kind": "List", "items": hostileManifests()})
	write("manifests/"+fileName+".yaml", "kind: [")
	write("manifests/twice.yaml", `{"`+strings.Trim(strconv.QuoteToASCII(hostile), `"`)+`": 1}`)
	plugin := filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")
	good := write("sluice.yaml", object{"apiVersion": "sluice.dev/v1alpha1", "kind": "SluiceConfiguration",
		"plugins":  []object{{"name": "locality", "file": plugin}},
		"policies": []object{{"name": "zoned", "plugins": []object{{"name": "locality", "settings": object{"minEndpointsPerZone": 1}}}}},
		"bindings": []object{{"selector": object{"matchLabels": object{"app": "web"}}, "policy": "zoned"}}})
	bad := write("bad "+fileName, object{"apiVersion": "sluice.dev/v1alpha1", "kind": "SluiceConfiguration", hostile: hostile, "mode": hostile,
		"clusterCIDR": hostile, "hostnameOverride": hostile, "logging": object{"format": hostile, hostile: 1}, "plugins": []object{{"name": hostile, "file": hostile, "digest": hostile}},
		"policies": []object{{"name": hostile, "plugins": []object{{"name": hostile, "settings": hostile}}}},
		"bindings": []object{{"selector": object{"matchLabels": object{hostile: hostile}}, "policy": hostile}}, "defaultPolicy": hostile})
	kubeProxy := write("kube-proxy", object{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", hostile: hostile,
		"mode": "iptables", "hostnameOverride": hostile, "bindAddress": hostile, "iptables": object{"syncPeriod": hostile}, "featureGates": object{hostile: true}})
	module := write("module "+fileName+".wasm", hostile)
	cluster := []string{"--source", filepath.Join(dir, "manifests"), "--node", "a1", "--config", good}
	with := func(args ...string) []string { return append(args, cluster...) }

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	outputs := map[string]string{}
	for _, args := range [][]string{
		with("plan"), with("plan", "-o", "json"), with("explain", "shop/web"), with("explain", "shop/web", "-o", "json"), with("explain", "shop/other"),
		with("explain", "-n", "shop", strings.ReplaceAll(hostile, "\x00", "")),
		with("trace", "--from", "10.244.9.9", "--to", "10.96.0.10:80"), with("trace", "--from", "10.244.9.9", "--to", fileName),
		{"config", "check", good}, {"config", "check", bad}, {"config", "migrate", kubeProxy}, {"config", fileName}, {"plugin", "check", module},
		{"plugin", "check", plugin, "--settings", strconv.QuoteToASCII(fileName), "--answers", "--verbose"}, {"check", "--config", bad}, {fileName}, {"plan", "--" + fileName},
	} {
		what := strings.Join(args[:min(2, len(args))], " ")
		if slices.Contains(args, "json") {
			what += " json"
		}
		cmd := &exec.Cmd{Path: self, Args: append([]string{"sluice"}, args...), Env: append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+testenv.PluginCache(t))}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if out.Len()+errs.Len() == 0 {
			t.Errorf("%s prints nothing: %v", what, err)
		}
		checkOutputText(t, what, out.String())
		checkOutputText(t, what+", on standard error,", errs.String())
		outputs[what] = out.String()
	}
	var x api.Explanation
	if err := json.Unmarshal([]byte(outputs["explain shop/web json"]), &x); err != nil {
		t.Fatal(err)
	}
	e := x.Pools[0].Endpoints[0]
	if e.Zone != hostile || e.Node != hostile || e.Pod != hostile {
		t.Errorf("JSON does not have the exact names: %+v", e)
	}
	// One row for each endpoint, one step of the plugin, whose reason names the zone.
	text := outputs["explain shop/web"]
	if rows := strings.Count(text, "\n  10.244.1."); rows != 2 || !strings.Contains(text, `x\nforged 1\r\n`) || !strings.Contains(text, "locality: ") {
		t.Errorf("%d rows:\n%s", rows, text)
	}
}

// TestLogsEscapeHostileNames checks both formats, in messages, keys and values.
func TestLogsEscapeHostileNames(t *testing.T) {
	for _, format := range []string{config.LogText, config.LogJSON} {
		var out bytes.Buffer
		cfg := config.Default()
		cfg.Logging.Format = format
		log := newLogger(printable.NewWriter(&out), cfg, &agent.Logs{})
		//nolint:sloglint // hostile keys
		log.With(hostile, hostile).WithGroup(hostile).Error(hostile, "err", errors.New(hostile), "service", model.Name{Namespace: hostile, Name: hostile},
			"list", []string{hostile}, "bytes", "\xff\xfe"+hostile, "group", slog.GroupValue(slog.String(hostile, hostile)))
		checkOutputText(t, format, out.String())
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: more than one line: %q", format, out.String())
		}
	}
}

func FuzzPrinters(f *testing.F) {
	for _, s := range []string{"plain", hostile, "\xff\x1b", "", "a\tb\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, share := time.Unix(0, 0), 0.5
		show := func(s string) string {
			var out bytes.Buffer
			endpoint := api.Endpoint{Address: s, Pod: s, Node: s, Zone: s, Eligible: true, Why: s, Shadow: &api.EndpointShadow{Steps: []api.Step{{Plugin: s, Reason: s + "."}}}, ResetAt: &at,
				Steps: []api.Step{{Plugin: s, Reason: s + "."}}, Kernel: []api.KernelShare{{Frontend: s}, {Frontend: s, Weight: 1}}}
			x := &api.Explanation{Service: s, Policy: s + ".", Plugins: []string{s}, Shadow: &api.Shadow{Plugins: []string{s + "."}, Divergence: &share}, Error: s + ".", Frontends: []string{s, s}, Contested: []string{s},
				Pools: []api.Pool{{Port: s, Protocol: s, Family: s, Pool: "cluster", Topology: s + ".", DecidedBy: s, Shadow: &api.PoolShadow{Error: s + ".", Pending: &api.Pending{Plugin: s + "."}}, Endpoints: []api.Endpoint{endpoint, endpoint}}}}
			flow := &api.TracedFlow{From: s, To: s + ".", Protocol: s}
			err := errors.Join(
				printer.Explanation(&out, x, s+"."),
				printer.Trace(&out, &api.Traced{Verdict: s, Service: s + ".", Why: s, Endpoints: []api.TracedEndpoint{{Address: s}}}, flow),
				printFindings(&out, []probe.Finding{{Group: s + ".", Name: s, Found: s + ".", Impact: s + ".", Remedy: s + "."}}),
			)
			printRemoved(&out, []string{s}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		text := show(s)
		checkOutputText(t, "a printer", strings.ReplaceAll(text, "forged", ""))
		if got, want := strings.Count(text, "\n"), strings.Count(show("plain"), "\n"); got != want {
			t.Errorf("%q: %d lines, want %d:\n%s", s, got, want, text)
		}
	})
}

// TestOutputPassesTheWriters: no other file writes to standard output or error.
func TestOutputPassesTheWriters(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "main.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, direct := range []string{"os.Stdout", "os.Stderr", "fmt.Print", "println("} {
			if strings.Contains(strings.ReplaceAll(string(text), "fmt.Fprintln(", ""), direct) {
				t.Errorf("%s: %s does not pass main.go's writers", name, direct)
			}
		}
	}
}
