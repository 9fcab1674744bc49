package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
)

// settings returns the settings that override those of the boutique: drain stages of a duration in seconds, a minimum of
// one endpoint per zone, and no hysteresis, so that the shares of each step are exact.
func settings(plugin string, stage int) map[string]any {
	switch plugin {
	case "lifecycle":
		duration := fmt.Sprintf("%ds", stage)
		return map[string]any{"drain": map[string]any{"stages": []any{
			map[string]any{"percent": 100, "duration": duration},
			map[string]any{"percent": 50, "duration": duration},
			map[string]any{"percent": 10, "duration": duration},
		}}}
	case "locality":
		return map[string]any{"minEndpointsPerZone": 1, "hysteresisPercent": 0}
	}
	return nil
}

// adapt changes the boutique's configuration for the demo: a copy of the plugins, which can be broken, a compile cache, and
// the demo's settings.
func adapt(text []byte, plugins, cache string, stage int) ([]byte, error) {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("the boutique's configuration: %w", err)
	}
	config["pluginCacheDir"] = cache
	config["statusPageBindAddress"] = pageAddress
	for _, p := range list(config["plugins"]) {
		file, _ := p["file"].(string)
		p["file"] = filepath.Join(plugins, filepath.Base(file))
		delete(p, "digest")
	}
	for _, policy := range list(config["policies"]) {
		for _, step := range list(policy["plugins"]) {
			name, _ := step["name"].(string)
			own, _ := step["settings"].(map[string]any)
			merged := map[string]any{}
			maps.Copy(merged, own)
			maps.Copy(merged, settings(name, stage))
			if len(merged) > 0 {
				step["settings"] = merged
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

// copyTree copies a folder of regular files.
func copyTree(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return lab.ReplaceFile(to, text)
}
