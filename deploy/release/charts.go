package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
)

// charts writes the charts, with the version and the digest of the image in them, and the kinds as one manifest.
func (r *release) charts(context.Context) error {
	version := strings.TrimPrefix(r.version, "v")
	edit := func(name, text string) (string, error) {
		replace := map[string]string{"\nversion: 0.1.0\n": "\nversion: " + version + "\n", "\nappVersion: 0.1.0\n": "\nappVersion: " + r.version + "\n"}
		switch name {
		case "Chart.yaml":
		case "values.yaml":
			replace = map[string]string{"\n  repository: \"\"\n": "\n  repository: " + r.repository + "\n", "\n  digest: \"\"\n": "\n  digest: " + r.digest + "\n"}
		default:
			return text, nil
		}
		for from, to := range replace {
			if strings.Count(text, from) != 1 {
				return "", fmt.Errorf("%s: no line %q", name, strings.TrimSpace(from))
			}
			text = strings.Replace(text, from, to, 1)
		}
		return text, nil
	}
	err := r.archive("sluice-"+version+".tgz", "sluice", "deploy/helm/sluice", edit)
	if err != nil {
		return err
	}
	ownValues := func(name, text string) (string, error) {
		if name == "values.yaml" {
			return text, nil
		}
		return edit(name, text)
	}
	if err := r.archive("sluice-crds-"+version+".tgz", "sluice-crds", "deploy/helm/sluice-crds", ownValues); err != nil {
		return err
	}
	text, err := kinds("deploy/kustomize/crds")
	if err != nil {
		return err
	}
	return r.write("sluice-crds.yaml", text)
}

// kinds returns the objects of a kustomization that has resources and one label only, as kubectl kustomize does.
func kinds(dir string) ([]byte, error) {
	var k struct {
		Resources []string
		Labels    []struct{ Pairs map[string]string }
	}
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil || len(k.Labels) != 1 {
		return nil, fmt.Errorf("%s: %w", dir, errors.Join(err, errors.New("want one label")))
	}
	var out bytes.Buffer
	for _, name := range k.Resources {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		for doc := range strings.SplitSeq("\n"+string(text), "\n---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if o == nil {
				continue
			}
			meta := o["metadata"].(map[string]any)
			labels, _ := meta["labels"].(map[string]any)
			if labels == nil {
				labels = map[string]any{}
			}
			for key, value := range k.Labels[0].Pairs {
				labels[key] = value
			}
			meta["labels"] = labels
			object, err := yaml.Marshal(o)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&out, "---\n%s", object)
		}
	}
	return out.Bytes(), nil
}

// archive writes the files of a folder as a compressed tar archive in which they are below another one: symbolic links as what
// they lead to, in the order of their names, with the time of the commit. edit, unless nil, changes a file, by its name in the
// folder.
func (r *release) archive(name, root, dir string, edit func(name, text string) (string, error)) error {
	var files []oci.File
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		body, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if edit != nil {
			text, err := edit(in, string(body))
			if err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			body = []byte(text)
		}
		files = append(files, oci.File{Name: path.Join(root, filepath.ToSlash(in)), Mode: 0o644, Body: body})
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	packed, err := oci.Pack(files, r.at)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return r.write(name, packed)
}
