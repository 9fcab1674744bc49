// Package bundle writes what is known of agents to an archive for a bug report.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

const (
	partTimeout = 30 * time.Second
	// MaxPart is the maximum size of a part in bytes; the rest is cut.
	MaxPart = 16 << 20
)

// Part is an entry of a bundle. With an error there is an entry NAME.error too.
type Part struct {
	Name string
	Text []byte
	Err  error
}

// Read reads a part.
func Read(ctx context.Context, name string, read func(context.Context) ([]byte, error)) Part {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	text, err := read(ctx)
	text = printable.Redact(text)
	if len(text) > MaxPart {
		text = append(text[:MaxPart:MaxPart], fmt.Sprintf("\n# cut after %d bytes\n", MaxPart)...)
	}
	return Part{name, text, err}
}

// JSON returns the text of a part from the answer of an agent.
func JSON[T any](x *T, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(x, "", "  ")
	return append(text, '\n'), err
}

// OfAgent reads the parts that an agent serves, one after the other, except its Status.
func OfAgent(ctx context.Context, c *stateclient.Client) []Part {
	parts := []Part{Read(ctx, "drains.json", func(ctx context.Context) ([]byte, error) { return JSON(c.Drains(ctx)) })}
	for _, r := range [][2]string{{"config.json", "/config"}, {"plan.txt", "/plan"}, {"metrics.txt", "/metrics"}} {
		parts = append(parts, Read(ctx, r[0], func(ctx context.Context) ([]byte, error) { return c.Text(ctx, r[1], MaxPart+1) }))
	}
	return append(parts, Read(ctx, "log.txt", func(ctx context.Context) ([]byte, error) {
		x, err := c.Log(ctx)
		if err != nil {
			return nil, err
		}
		return []byte(x.Lines), nil
	}))
}

// Writer writes a bundle.
type Writer struct {
	zip *gzip.Writer
	tar *tar.Writer
	now time.Time
}

// NewWriter returns a Writer. now is the time of its entries.
func NewWriter(w io.Writer, now time.Time) *Writer {
	zip := gzip.NewWriter(w)
	return &Writer{zip, tar.NewWriter(zip), now}
}

// Add writes parts to a folder of the bundle, "" for its root.
func (w *Writer) Add(folder string, parts []Part) error {
	for _, p := range parts {
		name := path.Join("sluice-bundle", folder, p.Name)
		if p.Err == nil || len(p.Text) > 0 {
			if err := w.entry(name, p.Text); err != nil {
				return err
			}
		}
		if p.Err != nil {
			if err := w.entry(name+".error", printable.Redact([]byte(p.Err.Error()+"\n"))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Writer) entry(name string, text []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), ModTime: w.now})
	if err == nil {
		_, err = w.tar.Write(text)
	}
	return err
}

// Close ends the bundle.
func (w *Writer) Close() error { return errors.Join(w.tar.Close(), w.zip.Close()) }
