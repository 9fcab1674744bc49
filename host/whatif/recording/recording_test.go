package recording_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

var start = time.Unix(1_700_000_000, 123456789)

func begin(t testing.TB, out io.Writer, cluster *model.Snapshot, keep recording.Keep) *recording.Encoder {
	t.Helper()
	e, err := recording.NewEncoder(out, recording.Header{Version: "v1", Node: "n0", Mode: "nftables", Started: start.UTC()}, start, cluster, keep, 0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// readAll returns all records, copied, and the error at the end.
func readAll(t testing.TB, text []byte) (out []recording.Record, err error) {
	t.Helper()
	r, err := recording.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := r.Next()
		if err != nil {
			return out, err
		}
		out = append(out, *rec)
	}
}

func apply(s *model.Snapshot, changes []model.Change) *model.Snapshot {
	for _, c := range changes {
		s.Apply(c)
	}
	return s
}

// TestClustersAreReadAsTheyWere records random clusters and changes of their slices, and compares the state after each record.
func TestClustersAreReadAsTheyWere(t *testing.T) {
	for seed := range uint64(30) {
		c := testgen.NewCluster(seed, testgen.ClusterOptions{})
		random := rand.New(rand.NewPCG(seed, 3))
		var out bytes.Buffer
		want := c.Snapshot()
		e := begin(t, &out, c.Snapshot(), recording.Keep{})
		var texts []string
		for i := range 40 {
			change := c.Changes[random.IntN(len(c.Changes))]
			if change.Slice != nil {
				own := *want.Slice(change.Name)
				own.Trigger, own.Version = int64(i), uint64(i)
				if own.Endpoints = slices.Clone(own.Endpoints); len(own.Endpoints) > 0 {
					j := random.IntN(len(own.Endpoints))
					switch random.IntN(3) {
					case 0:
						own.Endpoints[j].Ready = !own.Endpoints[j].Ready
					case 1:
						own.Endpoints = slices.Delete(own.Endpoints, j, j+1)
					case 2:
						own.Endpoints = slices.Insert(own.Endpoints, j, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), Ready: true})
					}
				}
				change.Slice = &own
			}
			apply(want, []model.Change{change})
			texts = append(texts, dump(want))
			if err := e.Changes(start.Add(time.Duration(i)*time.Second), []model.Change{change}); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(start.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		records, err := readAll(t, out.Bytes())
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		got := apply(model.NewSnapshot(), records[0].Changes)
		if !records[0].State || !got.Synced || dump(got) != dump(c.Snapshot()) {
			t.Fatalf("seed %d: the state at the beginning is\n%s\nwant\n%s", seed, dump(got), dump(c.Snapshot()))
		}
		for i, rec := range records[1 : len(records)-1] {
			if at := start.Add(time.Duration(i) * time.Second); !rec.At.Equal(at) {
				t.Fatalf("seed %d: record %d is of %s, want %s", seed, i, rec.At, at)
			}
			if text := dump(apply(got, rec.Changes)); text != texts[i] {
				t.Fatalf("seed %d: after record %d\n%s\nwant\n%s", seed, i, text, texts[i])
			}
		}
		if last := records[len(records)-1]; !last.End || !last.At.Equal(start.Add(time.Hour)) {
			t.Errorf("the last record is %+v", last)
		}
	}
}

func TestLabelsOfNamespacesAreThoseThatPluginsDeclare(t *testing.T) {
	namespace := func(env string) *model.Namespace {
		return &model.Namespace{Name: "shop", Labels: map[string]string{"env": env, "secret": "x"}}
	}
	changed := func(n *model.Namespace) model.Change {
		return model.Change{Kind: model.NamespaceKind, Name: model.Name{Namespace: "shop"}, Namespace: n}
	}
	cluster := apply(model.NewSnapshot(), []model.Change{changed(namespace("prod")), {Kind: model.NodeLabelsKind, Read: []string{"pool"}}, {Kind: model.Synced}})
	var out bytes.Buffer
	e := begin(t, &out, cluster, recording.Keep{NamespaceLabels: []string{"env"}})
	for _, changes := range [][]model.Change{{changed(namespace("test")), {Kind: model.NamespaceLabelsKind, Read: []string{"env"}}}, {changed(nil), {Kind: model.NodeLabelsKind}, {Kind: model.NamespaceLabelsKind}}} {
		if err := e.Changes(start, changes); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(start); err != nil {
		t.Fatal(err)
	}
	records, err := readAll(t, out.Bytes())
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	got := model.NewSnapshot()
	var labels []string
	for _, r := range records[:3] {
		apply(got, r.Changes)
		labels = append(labels, fmt.Sprint(got.Namespaces["shop"] != nil, got.NodeLabels.Has("pool"), got.NodeLabels.Has("x"), got.NamespaceLabels.Has("x")))
		if n := got.Namespaces["shop"]; n != nil {
			labels = append(labels, fmt.Sprint(n.Labels))
		}
	}
	if want := []string{"true true false true", "map[env:prod]", "true true false false", "map[env:test]", "false false false false"}; !slices.Equal(labels, want) {
		t.Errorf("got %q, want %q", labels, want)
	}
}

func TestLoadIsWhatPluginsDeclare(t *testing.T) {
	web, addr := model.Name{Namespace: "shop", Name: "web"}, netip.MustParseAddr("10.0.0.1")
	changed := func(values map[string]string) model.Change {
		return model.Change{Kind: model.LoadKind, Name: web, Load: &model.EndpointLoad{Values: map[netip.Addr]map[string]string{
			addr: values, netip.MustParseAddr("fd00::1"): {"mem_utilization": "1"}}}}
	}
	cluster := apply(model.NewSnapshot(), []model.Change{changed(map[string]string{"eps": "1", "cpu_utilization": "0.5"}), {Kind: model.LoadReadKind, Read: []string{"eps"}}, {Kind: model.Synced}})
	var out bytes.Buffer
	e := begin(t, &out, cluster, recording.Keep{Load: []string{"eps"}})
	for _, changes := range [][]model.Change{{changed(map[string]string{"eps": "2"}), {Kind: model.LoadReadKind}}, {{Kind: model.LoadKind, Name: web}}} {
		if err := e.Changes(start, changes); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(start); err != nil {
		t.Fatal(err)
	}
	records, err := readAll(t, out.Bytes())
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	got := model.NewSnapshot()
	var texts []string
	for _, r := range records[:3] {
		apply(got, r.Changes)
		text := fmt.Sprint(got.LoadRead.Has("eps"), got.LoadRead.Has("x"))
		if l := got.Loads[web]; l != nil {
			text += fmt.Sprint(" ", l.Values)
		}
		texts = append(texts, text)
	}
	if want := []string{"true false map[10.0.0.1:map[eps:1]]", "false false map[10.0.0.1:map[eps:2]]", "false false"}; !slices.Equal(texts, want) {
		t.Errorf("got %q, want %q", texts, want)
	}
}

// dump returns a snapshot as text. Empty and nil slices are the same.
func dump(s *model.Snapshot) string {
	var b strings.Builder
	for name, svc := range sorted(s.Services) {
		fmt.Fprintf(&b, "service %s %+v\n", name, *svc)
		for _, slice := range s.Slices[name] {
			own := *slice
			own.Endpoints = nil
			fmt.Fprintf(&b, "  slice %+v\n", own)
			for _, e := range slice.Endpoints {
				hints := e.Hints
				e.Hints = nil
				fmt.Fprintf(&b, "    %+v %v\n", e, hints)
			}
		}
	}
	for name, n := range sorted(s.Nodes) {
		fmt.Fprintf(&b, "node %s %+v\n", name, *n)
	}
	for name, c := range sorted(s.CIDRs) {
		fmt.Fprintf(&b, "cidr %s %+v\n", name, *c)
	}
	for name, p := range sorted(s.Pods) {
		fmt.Fprintf(&b, "pod %s %+v\n", name, *p)
	}
	return b.String()
}

func sorted[K comparable, V any](m map[K]V) func(func(K, V) bool) {
	return func(yield func(K, V) bool) {
		var keys []K
		for k := range m {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// small returns a cluster with a Service and a Pod with labels.
func small() *model.Snapshot {
	web := model.Name{Namespace: "shop", Name: "web"}
	return apply(model.NewSnapshot(), []model.Change{
		{Kind: model.PodsOnDemandKind, Value: true},
		{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Zone: "a"}},
		{Kind: model.ServiceKind, Name: web, Service: &model.Service{
			Name: web, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
			Annotations: model.PackAnnotations(map[string]string{"declared": "1", "secret": "s3cret", "long": strings.Repeat("x", 300)}, nil),
		}},
		{Kind: model.PodsReadKind, Name: web, Pods: model.PodsRead},
		{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "web-0"}, Pod: &model.Pod{
			Name: model.Name{Namespace: "shop", Name: "web-0"}, MilliCPU: 500,
			Labels: map[string]string{"version": "2", "owner": "s3cret"}, Annotations: map[string]string{"a": "b", "token": "s3cret"},
		}},
		{Kind: model.Synced},
	})
}

func TestOnlyDeclaredValuesAreRecorded(t *testing.T) {
	var out bytes.Buffer
	e := begin(t, &out, small(), recording.Keep{PodLabels: []string{"version"}, PodAnnotations: []string{"a"}, ServiceAnnotations: []string{"declared", "long"}})
	if err := e.Close(start); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil || bytes.Contains(text, []byte("s3cret")) {
		t.Errorf("%v:\n%s", err, text)
	}
	records, _ := readAll(t, out.Bytes())
	got := apply(model.NewSnapshot(), records[0].Changes)
	svc := got.Services[model.Name{Namespace: "shop", Name: "web"}]
	if v, ok := svc.Annotations.Get("declared"); !ok || v != "1" || !svc.Annotations.TooLong("long") {
		t.Errorf("annotations of the Service: %q", svc.Annotations)
	}
	pod := got.Pods[model.Name{Namespace: "shop", Name: "web-0"}]
	if !reflect.DeepEqual(pod.Labels, map[string]string{"version": "2"}) || !reflect.DeepEqual(pod.Annotations, map[string]string{"a": "b"}) || pod.MilliCPU != 500 {
		t.Errorf("%+v", pod)
	}
	if !got.PodsOnDemand || got.PodsOf(svc.Name) != model.PodsRead {
		t.Error("whether Pods have been read is lost")
	}
}

func key(last byte) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 80), Protocol: model.TCP}
}

func TestReadingsAreReadAsTheyWere(t *testing.T) {
	type counters = map[model.EndpointKey]outcomes.Counters
	readings := []recording.Reading{
		{Kind: recording.Read, Interval: time.Second, Counters: counters{key(1): {Attempts: 5, Answered: 4}, key(2): {}}},
		{Kind: recording.Read, Interval: time.Second, Counters: counters{key(1): {Attempts: 6, Answered: 4, Refused: 1}, key(3): {Attempts: 1}}},
		{Kind: recording.Stopped},
		{Kind: recording.Begun},
		{Kind: recording.Read, Interval: 2 * time.Second, Counters: counters{}},
		{Kind: recording.Rebased},
		{Kind: recording.Read, Interval: time.Second, Counters: counters{key(9): {Attempts: 1 << 60}}},
	}
	var out bytes.Buffer
	e := begin(t, &out, small(), recording.Keep{})
	for i := range readings {
		if err := e.Reading(start.Add(time.Duration(i)), &readings[i]); err != nil {
			t.Fatal(err)
		}
		if i == 4 { // the state of a cluster in between
			if err := e.State(start.Add(5), recording.Keep{}, 7); err != nil {
				t.Fatal(err)
			}
		}
	}
	open := map[model.EndpointKey]uint32{key(1): 3, key(2): 1<<32 - 1}
	if err := errors.Join(e.Open(start.Add(10), open), e.Open(start.Add(11), nil), e.Close(start.Add(12))); err != nil {
		t.Fatal(err)
	}
	r, err := recording.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		rec, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		switch {
		case rec.Reading != nil:
			want := readings[n]
			if rec.Reading.Kind != want.Kind || rec.Reading.Interval != want.Interval || len(rec.Reading.Counters) != len(want.Counters) ||
				len(want.Counters) > 0 && !reflect.DeepEqual(rec.Reading.Counters, want.Counters) {
				t.Errorf("reading %d: %+v, want %+v", n, rec.Reading, want)
			}
			n++
		case rec.Open != nil && !reflect.DeepEqual(rec.Open, open):
			t.Errorf("open connections: %v", rec.Open)
		case rec.State && n > 0 && rec.Lost != 7:
			t.Errorf("lost: %d", rec.Lost)
		}
	}
	if n != len(readings) {
		t.Errorf("%d readings", n)
	}
}

// TestATruncatedRecordingIsReadUpToItsLastRecord cuts a recording everywhere.
func TestATruncatedRecordingIsReadUpToItsLastRecord(t *testing.T) {
	var out bytes.Buffer
	e := begin(t, &out, small(), recording.Keep{})
	for i := range 8 {
		if err := e.Reading(start.Add(time.Duration(i)*time.Second), &recording.Reading{Kind: recording.Read, Counters: map[model.EndpointKey]outcomes.Counters{key(byte(i)): {Attempts: uint64(i)}}}); err != nil {
			t.Fatal(err)
		}
		if err := e.Flush(start.Add(time.Duration(i) * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	whole, err := readAll(t, out.Bytes())
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	last := 0
	for n := range out.Len() {
		r, err := recording.NewReader(bytes.NewReader(out.Bytes()[:n]))
		if err != nil {
			continue // within the header
		}
		got := 0
		for {
			rec, err := r.Next()
			if err == nil {
				if got++; !rec.At.Equal(whole[got-1].At) {
					t.Fatalf("cut at %d: record %d is of %s", n, got, rec.At)
				}
				continue
			}
			if !errors.Is(err, recording.ErrTruncated) && got < len(whole) {
				t.Fatalf("cut at %d: after %d records: %v", n, got, err)
			}
			break
		}
		if got < last {
			t.Fatalf("cut at %d: %d records, and %d of fewer bytes", n, got, last)
		}
		last = got
	}
	if last < len(whole)-1 {
		t.Errorf("%d of %d records are read without the last byte", last, len(whole))
	}
}

// lines returns a gzip stream.
func lines(list ...string) []byte {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	fmt.Fprint(zip, strings.Join(list, "\n")+"\n")
	zip.Close()
	return out.Bytes()
}

const (
	header = `{"sluiceRecording":1,"node":"n0"}`
	empty  = `{"t":1000,"state":{}}`
)

func TestInvalidRecordingsAreRefused(t *testing.T) {
	slice := `{"t":1001,"changes":[{"slice":{"name":{"Namespace":"a","Name":"b"},"service":"b","family":4,"eps":[{"a":"10.0.0.1"}]}}]}`
	for want, text := range map[string][]byte{
		"not a recording":         []byte("kind: List\n"),
		"no header":               lines(`{}`),
		"in format 2":             lines(`{"sluiceRecording":2}`),
		"no state before":         lines(header, `{"t":5}`),
		"time runs backwards":     lines(header, empty, `{"t":999}`),
		"more than 744h0m0s":      lines(header, empty, `{"t":9000000000000000000}`),
		"a change of nothing":     lines(header, empty, `{"t":1001,"changes":[{}]}`),
		"kind 99 is unknown":      lines(header, empty, `{"t":1001,"changes":[{"deleted":{"kind":99,"name":"x"}}]}`),
		"state 7 is unknown":      lines(header, empty, `{"t":1001,"changes":[{"pods":{"service":{"Name":"x"},"state":7}}]}`),
		"there is none to change": lines(header, empty, `{"t":1001,"changes":[{"slice":{"name":{"Namespace":"a","Name":"b"},"patch":true}}]}`),
		"does not have 1 and 1":   lines(header, empty, slice, `{"t":1002,"changes":[{"slice":{"name":{"Namespace":"a","Name":"b"},"patch":true,"head":1,"tail":1}}]}`),
		"does not have -1 and 0":  lines(header, empty, slice, `{"t":1002,"changes":[{"slice":{"name":{"Namespace":"a","Name":"b"},"patch":true,"head":-1}}]}`),
		"without an address":      lines(header, empty, `{"t":1001,"changes":[{"slice":{"name":{"Namespace":"a","Name":"b"},"eps":[{}]}}]}`),
		`kind "x" is unknown`:     lines(header, empty, `{"t":1001,"outcomes":{"kind":"x"}}`),
		"want three numbers":      lines(header, empty, `{"t":1001,"outcomes":{"kind":"read","changed":[{"a":"10.0.0.1:80","p":6,"n":[1]}]}}`),
		"want one number":         lines(header, empty, `{"t":1001,"counted":true,"connections":[{"a":"10.0.0.1:80","p":6}]}`),
		"after the end":           lines(header, empty, `{"t":1001,"end":true}`, `{"t":1002}`),
		"the rest of the record":  lines(header, `{"t":1000,"state":{},"more":true}`, `{"t":1001}`),
		"more than 8388608 bytes": lines(header, empty, `{"t":1001,"x":"`+strings.Repeat("x", 8<<20)+`"}`),
	} {
		r, err := recording.NewReader(bytes.NewReader(text))
		for err == nil {
			_, err = r.Next()
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if errors.Is(err, recording.ErrTruncated) {
			t.Errorf("%q counts as truncated", want)
		}
	}
}

// FuzzReader reads anything; what it reads can be written and read again.
func FuzzReader(f *testing.F) {
	f.Add([]byte(header + "\n" + empty + "\n"))
	var out bytes.Buffer
	e := begin(f, &out, small(), recording.Keep{PodLabels: []string{"version"}})
	_ = e.Reading(start, &recording.Reading{Kind: recording.Read, Counters: map[model.EndpointKey]outcomes.Counters{key(1): {Attempts: 1}}})
	_ = e.Close(start)
	zip, _ := gzip.NewReader(&out)
	text, _ := io.ReadAll(zip)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := recording.NewReader(bytes.NewReader(lines(string(text))))
		if err != nil {
			return
		}
		cluster := model.NewSnapshot()
		for {
			rec, err := r.Next()
			if err != nil {
				return
			}
			if rec.State {
				cluster = model.NewSnapshot()
			}
			apply(cluster, rec.Changes)
			var again bytes.Buffer
			e := begin(t, &again, cluster, rec.Keep)
			if err := e.Close(start); err != nil {
				t.Fatal(err)
			}
			if _, err := readAll(t, again.Bytes()); !errors.Is(err, io.EOF) {
				t.Fatalf("what was read is not read again: %v", err)
			}
		}
	})
}
