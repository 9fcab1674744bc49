package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// manifests is the folder that sluice watches. Changes are like those of a cluster: EndpointSlices are replaced as a whole,
// file by file, atomically.
type manifests struct {
	dir      string
	original map[string][]byte // by path
}

// openManifests reads the folder, for restore.
func openManifests(dir string) (*manifests, error) {
	m := &manifests{dir: dir, original: map[string][]byte{}}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		m.original[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %w", err)
	}
	return m, nil
}

// condition is the condition of an endpoint.
type condition string

const (
	ready       condition = "ready"
	notReady    condition = "not ready"
	terminating condition = "terminating" // but serving
)

func (c condition) conditions() map[string]any {
	return map[string]any{"ready": c == ready, "serving": c != notReady, "terminating": c == terminating}
}

// set sets the condition of an endpoint of a Service.
func (m *manifests) set(svc model.Name, pod string, c condition) error {
	return m.edit(svc, pod, func(endpoints []any, i int) []any {
		endpoints[i].(map[string]any)["conditions"] = c.conditions()
		return endpoints
	})
}

// remove removes an endpoint of a Service.
func (m *manifests) remove(svc model.Name, pod string) error {
	return m.edit(svc, pod, func(endpoints []any, i int) []any { return slices.Delete(endpoints, i, i+1) })
}

// addEndpoints adds ready endpoints on the node of an existing one. Pods have one address: slices of the other IP family
// do not change.
func (m *manifests) addEndpoints(svc model.Name, sibling string, added []pod) error {
	return m.edit(svc, sibling, func(endpoints []any, i int) []any {
		like := endpoints[i].(map[string]any)
		for _, p := range added {
			if strings.Contains(fmt.Sprint(like["addresses"]), ":") != p.addr.Is6() {
				continue
			}
			e := map[string]any{
				"addresses":  []any{p.addr.String()},
				"conditions": ready.conditions(),
				"nodeName":   like["nodeName"],
				"zone":       like["zone"],
				"targetRef":  map[string]any{"kind": "Pod", "namespace": svc.Namespace, "name": p.name},
			}
			endpoints = append(endpoints, e)
		}
		return endpoints
	})
}

// edit changes every list of endpoints of a Service that contains a Pod.
func (m *manifests) edit(svc model.Name, pod string, change func(endpoints []any, i int) []any) error {
	found := false
	for path := range m.original {
		docs, err := readDocuments(path)
		if err != nil {
			return err
		}
		changed := false
		for _, slice := range slicesOf(docs, svc) {
			endpoints, _ := slice["endpoints"].([]any)
			if i := slices.IndexFunc(endpoints, func(e any) bool { return podOf(e) == pod }); i >= 0 {
				slice["endpoints"] = change(endpoints, i)
				changed = true
			}
		}
		if changed {
			found = true
			if err := writeDocuments(path, docs); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("manifests: Service %s has no endpoint with Pod %s", svc, pod)
	}
	return nil
}

// restore restores the original content of the folder.
func (m *manifests) restore() error {
	for path, text := range m.original {
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
			if err := lab.ReplaceFile(path, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// slicesOf returns the EndpointSlices of a Service, also from Lists.
func slicesOf(objects []any, svc model.Name) (out []map[string]any) {
	for _, o := range objects {
		object, _ := o.(map[string]any)
		if items, ok := object["items"].([]any); ok {
			out = append(out, slicesOf(items, svc)...)
		}
		meta, _ := object["metadata"].(map[string]any)
		labels, _ := meta["labels"].(map[string]any)
		if object["kind"] == "EndpointSlice" && meta["namespace"] == svc.Namespace &&
			labels["kubernetes.io/service-name"] == svc.Name {
			out = append(out, object)
		}
	}
	return out
}

func podOf(endpoint any) string {
	e, _ := endpoint.(map[string]any)
	ref, _ := e["targetRef"].(map[string]any)
	name, _ := ref["name"].(string)
	return name
}

func readDocuments(path string) (docs []any, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	if filepath.Ext(path) == ".json" {
		d := json.NewDecoder(bytes.NewReader(text))
		for {
			var doc any
			if err := d.Decode(&doc); errors.Is(err, io.EOF) {
				return docs, nil
			} else if err != nil {
				return nil, fmt.Errorf("manifests: %s: %w", path, err)
			}
			docs = append(docs, doc)
		}
	}
	for _, part := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		var doc any
		if err := yaml.Unmarshal(part, &doc); err != nil {
			return nil, fmt.Errorf("manifests: %s: %w", path, err)
		}
		if doc != nil {
			docs = append(docs, doc)
		}
	}
	return docs, nil
}

func writeDocuments(path string, docs []any) error {
	var b bytes.Buffer
	for _, doc := range docs {
		encode := yaml.Marshal
		if filepath.Ext(path) == ".json" {
			encode = json.Marshal
		} else {
			b.WriteString("---\n")
		}
		text, err := encode(doc)
		if err != nil {
			return fmt.Errorf("manifests: write %s: %w", path, err)
		}
		b.Write(append(bytes.TrimSpace(text), '\n'))
	}
	return lab.ReplaceFile(path, b.Bytes())
}
