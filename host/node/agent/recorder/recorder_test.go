package recorder

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

var start = time.Unix(1_700_000_000, 0)

func slice(n int, ready bool) model.Change {
	name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", n)}
	return model.Change{Kind: model.SliceKind, Name: name, Slice: &model.EndpointSlice{
		Name: name, Service: name, Family: model.IPv4,
		Endpoints: []model.SliceEndpoint{{Addr: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), Ready: ready, Node: fmt.Sprintf("node-%d", n*7919)}},
	}}
}

func options(t *testing.T) (Options, *testenv.Buffer) {
	log := &testenv.Buffer{}
	return Options{File: filepath.Join(t.TempDir(), "r"), MaxBytes: 1 << 20, Files: 3, Log: slog.New(slog.NewTextHandler(log, nil)), Header: recording.Header{Node: "n0"}}, log
}

// read returns the records of a file.
func read(t *testing.T, file string) (out []recording.Record, err error) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
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

func TestTheStateAndChangesAreRecorded(t *testing.T) {
	o, _ := options(t)
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.OnChanges(time.Time{}, []model.Change{slice(1, true)})
	r.OnOutcomes(engine.OutcomeReading{Stage: engine.CountersRead, At: start}) // before the state is complete
	r.OnChanges(start, []model.Change{slice(2, true), {Kind: model.Synced}})
	testenv.Eventually(t, "the writer has the state", func() bool { return r.Stats().Bytes > 0 })
	r.OnChanges(start.Add(time.Second), []model.Change{slice(2, false)})
	r.OnOutcomes(engine.OutcomeReading{Stage: engine.CountersRead, At: start.Add(2 * time.Second), Interval: time.Second})
	r.OnConnections(start.Add(3*time.Second), map[model.EndpointKey]uint32{})
	r.Close()
	info, err := os.Stat(o.File)
	if err != nil || info.Mode() != 0o600 || info.Size() != r.Stats().Bytes || r.Stats().Dropped != 0 {
		t.Errorf("%v, %s, %d bytes; %+v", err, info.Mode(), info.Size(), r.Stats())
	}
	records, err := read(t, o.File)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var seen []string
	for _, rec := range records {
		if rec.State || len(rec.Changes) > 0 || rec.Reading != nil || rec.Open != nil {
			seen = append(seen, fmt.Sprint(rec.At.Sub(start), rec.State, len(rec.Changes), rec.Reading != nil, rec.Open != nil))
		}
	}
	want := "[0s true 5 false false 1s false 1 false false 2s false 0 true false 3s false 0 false true]"
	if fmt.Sprint(seen) != want {
		t.Errorf("%v, want %s", seen, want)
	}
}

// TestALateWriterLosesChangesButNotTheState: the writer takes nothing while more arrives than the queue has room for.
func TestALateWriterLosesChangesButNotTheState(t *testing.T) {
	o, log := options(t)
	f, err := openFiles(o)
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder(o)
	r.maximum = 10
	w := &writer{recorder: r, files: f}
	r.OnChanges(start, []model.Change{slice(0, true), {Kind: model.Synced}})
	write := func() {
		t.Helper()
		if err := w.write(r.take()); err != nil {
			t.Fatal(err)
		}
	}
	write()
	for i := range 100 {
		r.OnChanges(start.Add(time.Duration(i+1)*time.Second), []model.Change{slice(i%20, i%3 == 0)})
	}
	r.OnOutcomes(engine.OutcomeReading{At: start.Add(101 * time.Second)})
	if n := len(r.items) + len(r.pending); n > 10+20 {
		t.Errorf("%d changes are queued", n)
	}
	write()
	if s := r.Stats(); s.Dropped != 91 {
		t.Errorf("dropped %d, want 90 changes and a reading", s.Dropped)
	}
	if !strings.Contains(log.String(), "changes are missing in it") {
		t.Error(log)
	}
	r.OnChanges(start.Add(200*time.Second), []model.Change{slice(3, true)})
	write()
	if err := w.encoder.Close(start.Add(201 * time.Second)); err != nil {
		t.Fatal(err)
	}
	f.close()
	records, err := read(t, o.File)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	got, lost := model.NewSnapshot(), uint64(0)
	for _, rec := range records {
		if rec.State {
			got = model.NewSnapshot()
		}
		lost += rec.Lost
		for _, c := range rec.Changes {
			got.Apply(c)
		}
	}
	if lost != 91 {
		t.Errorf("the recording says that %d are lost", lost)
	}
	for i := range 20 {
		last := 80 + i
		want := last%3 == 0
		if i == 3 {
			want = true
		}
		if s := got.Slice(slice(i, true).Name); s == nil || s.Endpoints[0].Ready != want {
			t.Errorf("slice %d: %+v, want ready %t", i, s, want)
		}
	}
}

func TestFilesAreRotated(t *testing.T) {
	o, _ := options(t)
	if err := os.WriteFile(o.File, []byte("of the process before"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(o)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxBytes = 16 << 10
	r := newRecorder(o)
	w := &writer{recorder: r, files: f}
	r.OnChanges(start, []model.Change{slice(0, true), {Kind: model.Synced}})
	for i := range 30_000 {
		r.OnChanges(start.Add(time.Duration(i+1)*time.Millisecond), []model.Change{slice(i%300, i%3 == 0)})
		if i%100 == 0 {
			if err := w.write(r.take()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.encoder.Close(start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.close()
	entries, err := os.ReadDir(filepath.Dir(o.File))
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v: %v", entries, err)
	}
	for _, e := range entries {
		if info, _ := e.Info(); info.Size() > 2*o.MaxBytes {
			t.Errorf("%s has %d bytes", e.Name(), info.Size())
		}
		records, err := read(t, filepath.Join(filepath.Dir(o.File), e.Name()))
		if !errors.Is(err, io.EOF) || !records[0].State {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
}

func TestAStateThatIsTooLargeEndsTheRecording(t *testing.T) {
	o, log := options(t)
	o.MaxBytes = 4 << 10
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var all []model.Change
	for i := range 2000 {
		all = append(all, slice(i, true))
	}
	r.OnChanges(start, append(all, model.Change{Kind: model.Synced}))
	<-r.ended
	if s := r.Stats(); !errors.Is(s.Err, errTooLarge) || !strings.Contains(log.String(), "sluice goes on without it") {
		t.Errorf("%+v\n%s", s, log)
	}
	r.OnChanges(start, all)
	if len(r.items)+len(r.pending) > 0 {
		t.Error("changes are queued for nobody")
	}
	r.Close()
}

func TestFilesThatLeadElsewhereAreRefused(t *testing.T) {
	for name, prepare := range map[string]func(o *Options) error{
		"not a regular file":   func(o *Options) error { return os.Symlink("/etc/passwd", o.File) },
		"every user may write": func(o *Options) error { return os.Chmod(filepath.Dir(o.File), 0o777) },
		"r.2: not a regular":   func(o *Options) error { return os.Mkdir(o.File+".2", 0o700) },
	} {
		o, _ := options(t)
		if err := prepare(&o); err != nil {
			t.Fatal(err)
		}
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
		if _, err := os.Stat(o.File + ".1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: renamed", name)
		}
	}
}
