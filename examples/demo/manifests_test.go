package main

import (
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// inBoutique returns a copy of the boutique's manifests.
func inBoutique(t *testing.T) (*manifests, func() shop) {
	t.Helper()
	dir := t.TempDir()
	if err := copyTree(filepath.Join(dir, "manifests"), "../boutique/manifests"); err != nil {
		t.Fatal(err)
	}
	m, err := openManifests(filepath.Join(dir, "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	return m, func() shop {
		t.Helper()
		s, err := readShop(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func states(s shop) map[string]condition {
	out := map[string]condition{}
	for _, p := range s.pods(catalog) {
		out[p.name] = p.state
	}
	return out
}

func TestBoutiqueFitsTheDemo(t *testing.T) {
	_, read := inBoutique(t)
	s := read()
	for _, z := range []string{"zone-a", "zone-b", "zone-c"} {
		if n := len(s.podsIn(catalog, z)); n != 3 {
			t.Errorf("%s: %d endpoints of %s, want 3", z, n, catalog)
		}
	}
	if s.Nodes[node].Zone != zone {
		t.Errorf("%s is in %s, want %s", node, s.Nodes[node].Zone, zone)
	}
	if len(s.Services) < 12 {
		t.Errorf("%d Services, want a dozen", len(s.Services))
	}
	if _, err := s.nodePort(frontend, node); err != nil {
		t.Error(err)
	}
}

func TestManifestsChangeAndAreRestored(t *testing.T) {
	m, read := inBoutique(t)
	pods := read().podsIn(catalog, zone)
	for _, err := range []error{
		m.set(catalog, pods[0].name, notReady),
		m.set(catalog, pods[1].name, terminating),
		m.remove(catalog, pods[2].name),
		m.addEndpoints(catalog, pods[0].name, []pod{{name: "new", addr: netip.MustParseAddr("10.244.1.200")}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := states(read())
	if len(got) != 9 || got[pods[0].name] != notReady || got[pods[1].name] != terminating || got["new"] != ready {
		t.Errorf("got %v", got)
	}
	if _, there := got[pods[2].name]; there {
		t.Errorf("%s was removed and is there", pods[2].name)
	}
	added := read().podsIn(catalog, zone)
	for _, p := range added {
		if p.name == "new" && (p.node != pods[0].node || p.port != pods[0].port) {
			t.Errorf("the new Pod is on %s with port %d, want those of its neighbour", p.node, p.port)
		}
	}
	if err := m.restore(); err != nil {
		t.Fatal(err)
	}
	for path, text := range m.original {
		if now, err := os.ReadFile(path); err != nil || string(now) != string(text) {
			t.Errorf("%s is not what it was: %v", path, err)
		}
	}
	if err := m.set(catalog, "missing", ready); err == nil {
		t.Error("a Pod that is not there was changed")
	}
}

// The command that KEEP=1 prints works on the file of the boutique and on the files that the steps write.
func TestPrintedCommandMakesOnePodUnready(t *testing.T) {
	m, read := inBoutique(t)
	for _, rewritten := range []bool{false, true} {
		pods := read().podsIn(catalog, zone)
		p := pods[0]
		if rewritten {
			if err := m.set(catalog, pods[2].name, ready); err != nil {
				t.Fatal(err)
			}
			p = pods[1]
		}
		want := states(read())
		want[p.name] = notReady
		out, err := exec.Command("sh", "-c", unreadyCommand(filepath.Join(m.dir, "catalog.yaml"), p.addr)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got := states(read()); !maps.Equal(got, want) {
			t.Errorf("rewritten %v: got %v, want %v", rewritten, got, want)
		}
	}
}

func TestManifestsFindSlicesInListsAndJSON(t *testing.T) {
	dir := t.TempDir()
	const object = `{"kind":"EndpointSlice","metadata":{"namespace":"shop","labels":{"kubernetes.io/service-name":"catalog"}},
		"endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"a"}}]}`
	path := filepath.Join(dir, "slices.json")
	if err := os.WriteFile(path, []byte(`{"kind":"List","items":[`+object+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := openManifests(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.remove(catalog, "a"); err != nil {
		t.Fatal(err)
	}
	docs, err := readDocuments(path)
	if err != nil {
		t.Fatal(err)
	}
	found := slicesOf(docs, catalog)
	if len(found) != 1 || len(found[0]["endpoints"].([]any)) != 0 {
		t.Errorf("got %v", docs)
	}
}

func TestFreeAddressesAreUnusedAndOnTheNode(t *testing.T) {
	_, read := inBoutique(t)
	s := read()
	addrs, err := s.free(node, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range addrs {
		if !s.Nodes[node].PodCIDRs[0].Contains(a) || i > 0 && a == addrs[i-1] {
			t.Errorf("got %v", addrs)
		}
	}
}
