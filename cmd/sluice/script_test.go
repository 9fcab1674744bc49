package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sluice": func() { os.Exit(execute(context.Background(), os.Args[1:])) },
		"stuck":  func() { os.Exit(untilSignal(waitInVain)) },
	})
}

var update = flag.Bool("update", false, "rewrite the expected output in testdata/script")

// TestScripts runs testdata/script: the specification of what users see, one behavior per file. Plugins are the real
// ones, in Wasm; the backend is the fake one; the clock advances by command.
func TestScripts(t *testing.T) {
	wasmDir, cache := buildPlugins(t), testenv.PluginCache(t)
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	npm := filepath.Join(user, "sluice", "npm") // by .ci/deps; host/plugin/scaffold requires it
	t.Setenv("XDG_CACHE_HOME", cache)           // for the nodes that run in this process
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PLUGINS", wasmDir)
			env.Setenv("CHECKOUT", root)
			env.Setenv("npm_config_cache", npm)
			env.Setenv("npm_config_offline", "true")
			env.Setenv("GOCACHE", strings.TrimSpace(string(goCache)))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CACHE_HOME", cache)
			env.Values[nodeKey{}] = &scriptNode{}
			return nil
		},
		Condition: func(name string) (bool, error) { // rust: Debian's rustc with the target wasm32-unknown-unknown; npm: AssemblyScript is in npm's cache
			if name == "npm" {
				_, err := os.Stat(filepath.Join(npm, "package-lock.json.tmpl"))
				return err == nil, nil
			}
			_, err := os.Stat("/usr/lib/rustlib/wasm32-unknown-unknown")
			return name == "rust" && err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"node":     cmdNode,
			"reload":   cmdReload,
			"advance":  cmdAdvance,
			"restart":  cmdRestart,
			"kernel":   cmdKernel,
			"explain":  cmdExplain,
			"shares":   cmdShares,
			"messages": cmdMessages,
			"replace":  cmdReplace,
			"respond":  cmdRespond,
			"traffic":  cmdTraffic,
			"hold":     cmdHold,
		},
		UpdateScripts: *update,
	})
}

// buildPlugins compiles the plugins of the tests.
func buildPlugins(t *testing.T) string {
	return testenv.Plugins(t,
		"plugins/canary", "plugins/capacity", "plugins/least-loaded", "plugins/lifecycle", "plugins/locality", "plugins/maglev", "plugins/outlier", "plugins/rebalance",
		"plugins/subset", "plugins/utilization",
		"cmd/sluice/testdata/plugins/counting", "cmd/sluice/testdata/plugins/demanding", "cmd/sluice/testdata/plugins/nightly", "cmd/sluice/testdata/plugins/weighing")
}

// scriptNode is a node in a script: planner and plugins as `sluice run` has them, a kernel in memory, and a clock that the
// script advances.
type scriptNode struct {
	in      inputFlags
	now     time.Time
	kernel  *fake.Kernel
	backend *fake.Backend
	plugins *plugins.Set
	signals *scriptSignals
	planner *planner.Planner
	stop    func()
	log     strings.Builder
	synced  bool                      // the kernel has the plan: a delta is enough
	counted int                       // messages up to the last command messages
	clients map[fake.Packet]time.Time // of the command hold: when their connections end
	// connections is the number of those that the command traffic has made.
	connections int
}

// nodeKey is the key of the script's node.
type nodeKey struct{}

func nodeOf(ts *testscript.TestScript) *scriptNode {
	n := ts.Value(nodeKey{}).(*scriptNode)
	if n.planner == nil {
		ts.Fatalf("no node yet: 'node NAME' starts one")
	}
	return n
}

// node NAME: starts a node with the manifests in ./manifests and the configuration in ./sluice.yaml, at 2026-01-01.
func cmdNode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: node NAME")
	}
	n := ts.Value(nodeKey{}).(*scriptNode)
	n.in = inputFlags{sourceFlags: sourceFlags{source: ts.MkAbs("manifests")}, node: args[0], config: ts.MkAbs("sluice.yaml")}
	n.now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n.kernel, n.clients = fake.NewKernel(fake.Options{Seed: 1}), map[fake.Packet]time.Time{}
	n.start(ts, nil)
	ts.Defer(func() { n.stop() })
}

// scriptEpoch is the epoch of a clock that a restart does not change.
var scriptEpoch = policy.Epoch{Boot: "boot"}

// start starts the node with a checkpoint of the previous process.
func (n *scriptNode) start(ts *testscript.TestScript, checkpoint []byte) {
	cfg := n.config(ts)
	var err error
	n.plugins, err = plugins.Open(context.Background(), cfg, plugins.Options{Log: slog.New(slog.NewTextHandler(&n.log, nil))})
	ts.Check(err)
	n.stop = func() { n.plugins.Close(context.Background()) }
	n.backend, n.synced = fake.Open(n.kernel), false
	n.planner = agent.NewPlanner(cfg, nil, n.plugins)
	n.signals = &scriptSignals{Tracker: outcomes.NewTracker()}
	n.planner.UseSignals(n.signals)
	if checkpoint != nil {
		_, _, err := n.planner.Restore(checkpoint, scriptEpoch)
		ts.Check(err)
	}
	n.load(ts, cfg)
}

// config returns the configuration with the objects of the manifests.
func (n *scriptNode) config(ts *testscript.TestScript) *config.Config {
	cfg, err := n.in.load()
	ts.Check(err)
	cfg, err = n.in.withObjects(context.Background(), cfg)
	ts.Check(err)
	return cfg
}

func (n *scriptNode) load(ts *testscript.TestScript, cfg *config.Config) {
	if _, err := n.plugins.Load(context.Background(), cfg, nil); err != nil {
		fmt.Fprintln(&n.log, err)
	}
	cluster, problems, err := dir.Load(n.in.source)
	ts.Check(err)
	for _, p := range problems {
		fmt.Fprintln(&n.log, p)
	}
	n.planner.Replace(cluster)
	n.planner.PluginsReloaded()
	n.step(ts)
}

// step plans and programs at the current time, and returns the next wake-up time.
func (n *scriptNode) step(ts *testscript.TestScript) time.Time {
	s := n.planner.PlanNow(n.now)
	for _, err := range s.Errors {
		fmt.Fprintln(&n.log, err)
	}
	for _, err := range s.ChoiceErrors {
		fmt.Fprintln(&n.log, err)
	}
	for _, err := range s.SettingsErrors {
		fmt.Fprintln(&n.log, err)
	}
	for _, g := range s.Guards {
		fmt.Fprintln(&n.log, g.Text)
	}
	for _, w := range s.Warnings {
		fmt.Fprintln(&n.log, w)
	}
	if !n.synced {
		s.Delta = nil
	}
	_, err := n.backend.Apply(context.Background(), n.planner.Current(), s.Delta)
	n.synced = err == nil
	ts.Check(err)
	n.deleteUnreplied(ts, s.Delta)
	fmt.Fprint(ts.Stdout(), n.log.String())
	n.log.Reset()
	return s.RequeueAt
}

// deleteUnreplied deletes the connections without an answer to endpoints that get no new ones, as the engine does.
func (n *scriptNode) deleteUnreplied(ts *testscript.TestScript, d *plan.Delta) {
	if d == nil {
		return
	}
	var to []plan.Reset
	for i := range d.Changes {
		for _, a := range d.Changes[i].Lost() {
			to = append(to, plan.Reset{Frontend: d.Changes[i].Key, Endpoint: a})
		}
	}
	_, err := n.kernel.DeleteUnreplied(context.Background(), to)
	ts.Check(err)
}

// reload: reloads manifests, configuration and plugins.
func cmdReload(ts *testscript.TestScript, _ bool, _ []string) {
	n := nodeOf(ts)
	cfg := n.config(ts)
	n.planner.Configure(agent.PlanSettings(cfg, nil))
	n.load(ts, cfg)
}

// advance DURATION: advances the clock, and plans at each wake-up time.
func cmdAdvance(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	until := n.now.Add(d)
	for wake := n.step(ts); !wake.IsZero() && !wake.After(until); wake = n.step(ts) {
		n.now = wake
	}
	n.now = until
	n.step(ts)
}

// restart: restarts the process on the same kernel, with its checkpoint.
func cmdRestart(ts *testscript.TestScript, _ bool, _ []string) {
	n := nodeOf(ts)
	saved, err := n.planner.Save(scriptEpoch)
	ts.Check(err)
	n.stop()
	n.start(ts, saved)
}

// kernel [TEXT]: prints the plan in the kernel; with TEXT, the frontends that contain it.
func cmdKernel(ts *testscript.TestScript, _ bool, args []string) {
	p, _ := nodeOf(ts).kernel.Table(fake.Name)
	if len(args) == 0 {
		fmt.Fprint(ts.Stdout(), plan.Format(p))
		return
	}
	for _, k := range p.Keys() {
		if text := plan.FormatFrontend(p.Frontends[k]); strings.Contains(text, args[0]) {
			fmt.Fprint(ts.Stdout(), text)
		}
	}
}

// explain NAMESPACE/SERVICE: prints what `sluice explain` prints.
func cmdExplain(ts *testscript.TestScript, _ bool, args []string) {
	ns, svc, _ := strings.Cut(args[0], "/")
	n := nodeOf(ts)
	found, err := n.planner.Explain(model.Name{Namespace: ns, Name: svc})
	ts.Check(err)
	cfg := n.config(ts)
	x := state.NewExplanation(found, time.UnixMilli)
	x.Node = agent.NodeState(cfg, n.plugins)
	ts.Check(printer.Explanation(ts.Stdout(), x, ""))
}

// shares ADDRESS:PORT [FROM]: makes 10,000 connections in the kernel and prints the share of each endpoint in percent; none
// stands for connections that have no frontend.
func cmdShares(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	to, err := netip.ParseAddrPort(args[0])
	ts.Check(err)
	from := netip.MustParseAddr("10.244.250.1")
	if len(args) > 1 {
		from = netip.MustParseAddr(args[1])
	}
	const connections = 10_000
	got := map[string]int{}
	for i := range connections {
		p := fake.Packet{From: netip.AddrPortFrom(from, uint16(20_000+i)), To: to, Protocol: model.TCP}
		r := n.kernel.Connect(p)
		n.kernel.Disconnect(p)
		what := r.Verdict.String()
		if !r.Ours {
			what = "none"
		}
		if r.Endpoint.IsValid() {
			what = r.Endpoint.String()
		}
		got[what]++
	}
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(ts.Stdout(), "%s %.0f\n", name, 100*float64(got[name])/connections)
	}
}

// messages [N]: prints how many messages the kernel has received since the last call; with N, checks the number.
func cmdMessages(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	got := n.kernel.Stats().Messages - n.counted
	n.counted += got
	fmt.Fprintln(ts.Stdout(), got)
	if len(args) == 1 && args[0] != strconv.Itoa(got) {
		ts.Fatalf("%d messages", got)
	}
}

// replace FILE OLD NEW: replaces every OLD in a file, which must contain it.
func cmdReplace(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s has no %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o644))
}
