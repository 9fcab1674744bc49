package dir

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a manifest of a Node with a zone.
func node(name, zone string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}\n---\n", name, zone)
}

// run is a source at work on a folder, with what it has emitted.
type run struct {
	t     *testing.T
	root  string
	mu    sync.Mutex
	snap  *model.Snapshot
	calls [][]model.Change
	log   bytes.Buffer
	wake  chan struct{}
}

// start runs a source until the test ends, and waits for its first state.
func start(t *testing.T, root string, opt Options) *run {
	t.Helper()
	r := &run{t: t, root: root, snap: model.NewSnapshot(), wake: make(chan struct{}, 1)}
	opt.Log = slog.New(slog.NewTextHandler(&locked{r: r}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- New(root, opt).Run(ctx, func(changes []model.Change) {
			r.mu.Lock()
			r.calls = append(r.calls, changes)
			for _, c := range changes {
				r.snap.Apply(c)
			}
			r.mu.Unlock()
			r.poke()
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	r.until("synced", func() bool { return r.snap.Synced })
	return r
}

// locked is the log's writer.
type locked struct{ r *run }

func (l *locked) Write(b []byte) (int, error) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.poke()
	return l.r.log.Write(b)
}

func (r *run) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// until waits for a condition over what was emitted and logged.
func (r *run) until(what string, ok func() bool) {
	r.t.Helper()
	late := time.After(time.Minute)
	for {
		r.mu.Lock()
		now := ok()
		r.mu.Unlock()
		if now {
			return
		}
		select {
		case <-r.wake:
		case <-late:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s: not seen; nodes: %s\nlog:\n%s", what, r.zones(), r.log.String())
		}
	}
}

// zones writes the Nodes as name=zone.
func (r *run) zones() string {
	var out []string
	for _, n := range r.snap.Nodes {
		out = append(out, n.Name+"="+n.Zone)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *run) becomes(want string) {
	r.t.Helper()
	r.until(want, func() bool { return r.zones() == want })
}

func (r *run) logs(text string) {
	r.t.Helper()
	r.until("log "+text, func() bool { return strings.Contains(r.log.String(), text) })
}

func (r *run) write(name, text string) {
	r.t.Helper()
	write(r.t, filepath.Join(r.root, name), text)
}

func (r *run) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

var timed = Options{After: time.After}

// held is timed, but for waits of from and more: they last until the test lets them end, however slow this machine is.
func held(from time.Duration) (_ Options, end func()) {
	over := make(chan time.Time)
	return Options{After: func(d time.Duration) <-chan time.Time {
		select {
		case <-over:
		default:
			if d >= from {
				return over
			}
		}
		return time.After(d)
	}}, func() { close(over) }
}

func TestFirstTheWholeStateThenSyncedOnce(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "b.yaml"), node("n2", "b")+node("n1", "a"))
	write(t, filepath.Join(root, "a.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n")
	r := start(t, root, timed)
	r.write("c.yaml", node("n3", "c"))
	r.becomes("n1=a n2=b n3=c")
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, call := range r.calls {
		for _, c := range call {
			got = append(got, fmt.Sprint(c.Kind, c.Name))
		}
	}
	want := "[1 default/web 3 /n1 3 /n2 0 / 3 /n3]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAChangedFileEmitsOnlyWhatChangedInIt(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a")+node("n2", "a")+node("n3", "a"))
	r := start(t, root, timed)
	r.write("a.yaml", "# a comment\n"+node("n1", "a")+node("n2", "b")+node("n3", "a"))
	r.becomes("n1=a n2=b n3=a")
	r.write("a.yaml", node("n1", "a")+node("n3", "a"))
	r.becomes("n1=a n3=a")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.calls[1:] {
		if len(call) != 1 || call[0].Name.Name != "n2" {
			t.Errorf("emitted %v, want only n2", call)
		}
	}
}

func TestAtomicRenameReplacesAFile(t *testing.T) {
	r := start(t, t.TempDir(), timed)
	for i := range 10 {
		r.write(".a.tmp", node("n1", fmt.Sprintf("z%d", i)))
		r.do(os.Rename(filepath.Join(r.root, ".a.tmp"), filepath.Join(r.root, "a.yaml")))
		r.becomes(fmt.Sprintf("n1=z%d", i))
	}
}

func TestAnEditorThatMovesTheOldFileAwayFirstLosesNothing(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	opt, end := held(absence)
	r := start(t, root, opt)
	r.do(os.Rename(filepath.Join(root, "a.yaml"), filepath.Join(root, "a.yaml~")))
	time.Sleep(5 * quiet)
	r.write("a.yaml", node("n1", "b"))
	end()
	r.becomes("n1=b")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.calls {
		for _, c := range call {
			if c.Kind == model.NodeKind && c.Node == nil {
				t.Error("the Node was gone for a moment")
			}
		}
	}
}

func TestARemovedFileRemovesItsObjects(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	write(t, filepath.Join(root, "b.yaml"), node("n1", "b")+node("n2", "b"))
	r := start(t, root, timed)
	r.becomes("n1=a n2=b")
	r.do(os.Remove(filepath.Join(root, "a.yaml")))
	r.becomes("n1=b n2=b") // the duplicate takes over
	r.do(os.Rename(filepath.Join(root, "b.yaml"), filepath.Join(root, "b.off")))
	r.becomes("")
}

func TestAHalfWrittenFileKeepsItsLastGoodObjects(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, timed)
	r.write("a.yaml", node("n1", "a")+node("n2", "a"))
	r.becomes("n1=a n2=a")
	for _, torn := range []string{node("n1", "b") + "apiVersion: v1\nkind: [", "", " \n"} {
		r.write("a.yaml", torn)
		r.logs("last good version are kept")
		r.write("other.yaml", node("n3", "a")) // a later change goes through while the file is broken
		r.becomes("n1=a n2=a n3=a")
		r.do(os.Remove(filepath.Join(root, "other.yaml")))
		r.becomes("n1=a n2=a")
	}
	r.write("a.yaml", node("n1", "b")+node("n2", "b"))
	r.becomes("n1=b n2=b")
}

func TestAFileCutOffInTheMiddleOfAWordLosesNothing(t *testing.T) {
	for _, torn := range []string{"apiVersion: v1\nkind: No", "apiVersion: v", "apiVersion: v1\nkind: Node\nmetadata:", "api"} {
		root := t.TempDir()
		r := start(t, root, timed)
		r.write("a.yaml", node("n1", "a")+node("n2", "a"))
		r.becomes("n1=a n2=a")
		r.write("a.yaml", node("n1", "b")+torn)
		r.becomes("n1=b n2=a") // what is whole is taken, what is missing stays
		r.logs("half-written")
		r.write("a.yaml", node("n1", "c"))
		r.becomes("n1=c") // a whole file without n2 means it
	}
}

func TestAnObjectThatBecomesBadStaysAsItWas(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, timed)
	bad := strings.Replace(node("n1", "b"), "---", "spec: {podCIDRs: [10.0.0.0/99]}\n---", 1)
	r.write("a.yaml", bad)
	r.becomes("n1=b") // new: what is good of it is used
	r.write("a.yaml", node("n1", "a")+node("n2", "a"))
	r.becomes("n1=a n2=a")
	r.write("a.yaml", bad+node("n2", "b"))
	r.becomes("n1=a n2=b")
	r.logs("the object stays as it was")
	r.write("a.yaml", node("n1", "c"))
	r.becomes("n1=c")
	r.logs("manifest problem is gone")
}

// A writer that takes its time is not seen until it is done, even where what it has written so far is well-formed.
func TestAFileThatIsBeingWrittenIsReadWhenItsWriterIsDone(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a.yaml")
	write(t, path, node("n1", "a")+node("n2", "a"))
	probe, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	told := beingWritten(reader)
	reader.Close()
	probe.Close()
	if !told {
		t.Skip("this file system does not tell who writes a file")
	}
	opt, end := held(absence)
	r := start(t, root, opt)
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := w.WriteString(node(fmt.Sprintf("n%d", i+1), "b")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * quiet)
	}
	r.do(w.Close())
	end()
	r.until("ten nodes", func() bool { return len(r.snap.Nodes) == 10 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) != 2 || len(r.calls[1]) != 10 {
		t.Errorf("emitted in %d calls, want the first state and the finished file: %v", len(r.calls), r.calls)
	}
}

func TestAFileThatStaysOpenForWritingIsReadInTheEnd(t *testing.T) {
	r := start(t, t.TempDir(), timed)
	w, err := os.Create(filepath.Join(r.root, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString(node("n1", "a")); err != nil {
		t.Fatal(err)
	}
	r.becomes("n1=a")
}

func TestTheFirstStateWaitsForAFileThatIsBeingWritten(t *testing.T) {
	root := t.TempDir()
	w, err := os.Create(filepath.Join(root, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(node("n1", "a")); err != nil {
		t.Fatal(err)
	}
	opt, end := held(absence)
	go func() {
		defer end()
		time.Sleep(5 * quiet)
		_, _ = w.WriteString(node("n2", "a"))
		_ = w.Close()
	}()
	r := start(t, root, opt)
	r.becomes("n1=a n2=a")
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) != 1 {
		t.Errorf("emitted in %d calls", len(r.calls))
	}
}

func TestAProblemIsLoggedOnceUntilItIsGone(t *testing.T) {
	r := start(t, t.TempDir(), timed)
	count := func() int { return strings.Count(r.log.String(), "ConfigMap x") }
	other := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
	r.write("a.yaml", other)
	r.logs("ConfigMap x")
	for i := range 3 {
		r.write("b.yaml", node("n1", fmt.Sprint("z", i)))
		r.becomes(fmt.Sprint("n1=z", i))
	}
	r.until("one line", func() bool { return count() == 1 })
	r.write("a.yaml", "# nothing\n")
	r.write("b.yaml", node("n1", "later"))
	r.becomes("n1=later")
	r.write("a.yaml", other)
	r.until("another line", func() bool { return count() == 2 })
}

func TestFoldersMadeLaterAreRead(t *testing.T) {
	r := start(t, t.TempDir(), timed)
	r.write("x/y/z/a.yaml", node("n1", "a"))
	r.becomes("n1=a")
	r.write("x/y/b.yaml", node("n2", "a"))
	r.becomes("n1=a n2=a")
	r.do(os.Rename(filepath.Join(r.root, "x"), filepath.Join(r.root, "w")))
	r.becomes("n1=a n2=a")
	r.write("w/y/z/a.yaml", node("n1", "b"))
	r.becomes("n1=b n2=a")
	r.do(os.RemoveAll(filepath.Join(r.root, "w")))
	r.becomes("")
}

func TestAMountedConfigMapIsSwapped(t *testing.T) {
	root := t.TempDir()
	publish := func(version, text string) {
		write(t, filepath.Join(root, version, "a.yaml"), text)
		tmp := filepath.Join(root, "..data_tmp")
		if err := os.Symlink(version, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(root, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", node("n1", "a"))
	if err := os.Symlink("..data/a.yaml", filepath.Join(root, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r := start(t, root, timed)
	r.becomes("n1=a")
	for i := 2; i < 6; i++ {
		publish(fmt.Sprintf("..%d", i), node("n1", fmt.Sprintf("z%d", i)))
		r.becomes(fmt.Sprintf("n1=z%d", i))
		r.do(os.RemoveAll(filepath.Join(root, fmt.Sprintf("..%d", i-1))))
	}
	// A write behind the links is seen as well.
	r.write("..data/a.yaml", node("n1", "behind"))
	r.becomes("n1=behind")
}

func TestTheFolderItselfMayBeALinkThatIsSwapped(t *testing.T) {
	base := t.TempDir()
	write(t, filepath.Join(base, "v1/a.yaml"), node("n1", "a"))
	write(t, filepath.Join(base, "v2/a.yaml"), node("n1", "b"))
	root := filepath.Join(base, "current")
	if err := os.Symlink("v1", root); err != nil {
		t.Fatal(err)
	}
	r := start(t, root, timed)
	r.becomes("n1=a")
	r.do(os.Symlink("v2", root+".tmp"))
	r.do(os.Rename(root+".tmp", root))
	r.becomes("n1=b")
	r.write("a.yaml", node("n1", "c"))
	r.becomes("n1=c")
}

func TestAFolderThatGoesAwayKeepsItsObjectsUntilItReturns(t *testing.T) {
	root := filepath.Join(t.TempDir(), "manifests")
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	r := start(t, root, timed)
	r.do(os.Rename(root, root+".away"))
	r.logs("its objects are kept")
	r.becomes("n1=a")
	r.write("a.yaml", node("n1", "b"))
	r.becomes("n1=b")
}

func TestLinksInCirclesAndToNowhereEnd(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "sub/a.yaml"), node("n1", "a"))
	for link, to := range map[string]string{"sub/loop": "..", "gone.yaml": "nowhere.yaml", "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, root, timed)
	r.becomes("n1=a")
	r.logs("gone.yaml")
}

func TestABurstIsOneCall(t *testing.T) {
	opt, end := held(0)
	r := start(t, t.TempDir(), opt)
	for i := range 50 {
		r.write(fmt.Sprintf("f%02d.yaml", i), node(fmt.Sprintf("n%02d", i), "a"))
	}
	end()
	r.until("50 nodes", func() bool { return len(r.snap.Nodes) == 50 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.calls); n > 15 {
		t.Errorf("%d calls for one burst of 50 files", n)
	}
}

func TestWithoutATimerEveryChangeStillArrives(t *testing.T) {
	r := start(t, t.TempDir(), Options{})
	for i := range 20 {
		r.write("a.yaml", node("n1", fmt.Sprintf("z%d", i)))
	}
	r.becomes("n1=z19")
}

func TestPollFindsWhatNoEventTold(t *testing.T) {
	far := t.TempDir() // behind two links in two folders: the one in the middle is not watched
	write(t, filepath.Join(far, "real/a.yaml"), node("n1", "a"))
	write(t, filepath.Join(far, "other/a.yaml"), node("n1", "b"))
	middle := filepath.Join(far, "middle", "a")
	if err := os.MkdirAll(filepath.Dir(middle), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../real/a.yaml", middle); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Symlink(middle, filepath.Join(root, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	tick := make(chan time.Time)
	r := start(t, root, Options{After: time.After, Poll: tick})
	r.becomes("n1=a")
	r.do(os.Symlink("../other/a.yaml", middle+".tmp"))
	r.do(os.Rename(middle+".tmp", middle))
	select {
	case tick <- time.Now():
	case <-time.After(time.Minute):
		t.Fatal("nobody polls")
	}
	r.becomes("n1=b")
}

func TestRunOfAMissingFolderFails(t *testing.T) {
	err := New(filepath.Join(t.TempDir(), "nowhere"), Options{}).Run(t.Context(), func([]model.Change) {})
	if err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkChange is from the write of one file among many to the emitted change.
func BenchmarkChange(b *testing.B) {
	for _, files := range []int{10, 1000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			root := b.TempDir()
			for i := range files {
				if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("f%04d.yaml", i)), []byte(node(fmt.Sprintf("n%04d", i), "a")), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			got := make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				done <- New(root, timed).Run(ctx, func([]model.Change) { got <- struct{}{} })
			}()
			<-got
			b.ResetTimer()
			for i := range b.N {
				if err := os.WriteFile(filepath.Join(root, "f0000.yaml"), []byte(node("n0000", fmt.Sprint("z", i))), 0o644); err != nil {
					b.Fatal(err)
				}
				<-got
			}
			cancel()
			<-done
		})
	}
}
