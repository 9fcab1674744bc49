package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// BenchmarkLoad reads the dump of 10,000 Services with ten endpoints each from one file.
func BenchmarkLoad(b *testing.B) {
	for _, ext := range []string{"json", "yaml"} {
		b.Run(ext, func(b *testing.B) {
			root := b.TempDir()
			writeDump(b, filepath.Join(root, "dump."+ext), 10000)
			info, err := os.Stat(filepath.Join(root, "dump."+ext))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(info.Size())
			b.ReportAllocs()
			for b.Loop() {
				snap, problems, err := Load(root)
				if err != nil || len(problems) > 0 || len(snap.Services) != 10000 {
					b.Fatal(err, problems)
				}
			}
		})
	}
}

// BenchmarkStart reads 10,000 Services from as many files.
func BenchmarkStart(b *testing.B) {
	root := b.TempDir()
	for i := range 10000 {
		writeService(b, root, i, 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		if snap, problems, err := Load(root); err != nil || len(problems) > 0 || len(snap.Services) != 10000 {
			b.Fatal(err, problems)
		}
	}
}

// BenchmarkChange measures from the write of one file among many to the emitted change.
func BenchmarkChange(b *testing.B) {
	for _, files := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			root := b.TempDir()
			for i := range files {
				writeService(b, root, i, 0)
			}
			setOld(b, root)
			benchmarkChanges(b, root, func(i int) { writeService(b, root, 0, i+1) })
		})
	}
	for _, ext := range []string{"json", "yaml"} {
		b.Run("dump="+ext, func(b *testing.B) {
			root := b.TempDir()
			path := filepath.Join(root, "dump."+ext)
			writeDump(b, path, 10000)
			text, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkChanges(b, root, func(i int) {
				changed := bytes.Replace(text, []byte("web-5000-7c9d8b6f5-00003"), fmt.Appendf(nil, "web-5000-7c9d8b6f5-%05d", i+10), 1)
				if err := os.WriteFile(path, changed, 0o600); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func writeService(b *testing.B, root string, i, version int) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web-%[1]d, namespace: shop, labels: {app: web, version: "%[3]d"}}
spec:
  clusterIP: 10.96.%[2]d.1
  selector: {app: web}
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: 8080}
`, i, i%250, version)
	if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("f%05d.yaml", i)), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// setOld lets files be older than coarsest.
func setOld(b *testing.B, root string) {
	old := time.Now().Add(-time.Hour)
	files, err := filepath.Glob(filepath.Join(root, "*"))
	for _, f := range files {
		err = errors.Join(err, os.Chtimes(f, old, old))
	}
	if err != nil {
		b.Fatal(err)
	}
}

// afterEvent does not wait for further events, so that a benchmark shows the cost of a change.
func afterEvent(d time.Duration) <-chan time.Time {
	if d == settle {
		d = 0
	}
	return time.After(d)
}

func benchmarkChanges(b *testing.B, root string, change func(i int)) {
	got := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- New(root, Options{After: afterEvent, Now: time.Now}).Run(ctx, func([]model.Change) { got <- struct{}{} })
	}()
	<-got
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		change(i)
		<-got
	}
	b.StopTimer()
	cancel()
	<-done
}
