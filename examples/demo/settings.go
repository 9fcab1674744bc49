package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// stage is how long each stage of a drain lasts here: long enough to measure it and short enough to wait for.
const stage = 4 // seconds

// settings are what the demo asks of the bundled plugins in the place of the boutique's own settings: a drain that one
// can watch, zones that count down to their last endpoint, and no hysteresis, so that shares are exact at each step.
func settings(plugin string) map[string]any {
	switch plugin {
	case "staged-drain":
		return map[string]any{"stages": []any{
			map[string]any{"weight": 100, "seconds": stage},
			map[string]any{"weight": 50, "seconds": stage},
			map[string]any{"weight": 10, "seconds": stage},
		}}
	case "zone-spill":
		return map[string]any{"minEndpointsPerZone": 1, "hysteresisPercent": 0}
	}
	return nil
}

// adapt makes the boutique's configuration the demo's: plugins from a folder where they can be broken, a cache so that
// each is compiled once, and the demo's settings laid over the boutique's.
func adapt(text []byte, plugins, cache string) ([]byte, error) {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("the boutique's configuration: %w", err)
	}
	config["pluginCacheDir"] = cache
	for _, p := range list(config["plugins"]) {
		file, _ := p["file"].(string)
		p["file"] = filepath.Join(plugins, filepath.Base(file))
		delete(p, "digest")
	}
	for _, policy := range list(config["policies"]) {
		for _, step := range list(policy["plugins"]) {
			name, _ := step["name"].(string)
			own, _ := step["settings"].(map[string]any)
			if own == nil {
				continue // the policy takes the defaults
			}
			for key, value := range settings(name) {
				own[key] = value
			}
		}
	}
	out, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("the demo's configuration: %w", err)
	}
	return out, nil
}

func list(v any) (out []map[string]any) {
	all, _ := v.([]any)
	for _, e := range all {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// copyTree copies a folder of plain files.
func copyTree(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	return replaceFile(to, text)
}
