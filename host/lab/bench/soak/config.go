package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// misbehaviors are the settings of the hostile plugin, each in a policy of its own that a namespace of the same name has.
var misbehaviors = []string{"loop", "log", "grow", "allocate", "trap", "lie", "flip", "requeue", "state", "slow"}

// configFile is the configuration of the node.
type configFile struct {
	path, cache, plugins, guests string
	profiling                    bool
	revision                     int
}

func newConfigFile(path, cache string, o options) (*configFile, error) {
	plugins, err := filepath.Abs(o.plugins)
	if err != nil {
		return nil, err
	}
	guests, err := filepath.Abs(o.guests)
	if err != nil {
		return nil, err
	}
	c := &configFile{path: path, cache: cache, plugins: plugins, guests: guests, profiling: o.profile != ""}
	return c, c.write(false)
}

// write writes the next revision of the configuration. With hostile, it has the hostile plugins, with settings that differ
// from those of the revision before, so that each write loads them again.
func (c *configFile) write(hostile bool) error {
	c.revision++
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
clusterCIDR: 10.244.0.0/16
pluginCacheDir: %q
syncPeriod: 10s
enableProfiling: %t
plugins:
- {name: lifecycle, file: %q}
- {name: locality, file: %q}
`, c.cache, c.profiling, filepath.Join(c.plugins, "lifecycle.wasm"), filepath.Join(c.plugins, "locality.wasm"))
	if hostile {
		fmt.Fprintf(&b, "- {name: hostile, file: %q}\n", filepath.Join(c.guests, "hostile.wasm"))
	}
	b.WriteString("policies:\n- {name: good, plugins: [{name: lifecycle, settings: {drain: {}}}, {name: locality}]}\n")
	bindings := "bindings:\n- {namespaces: [shop], policy: good}\n- {namespaces: [churn], policy: good}\n"
	if hostile {
		for _, m := range misbehaviors {
			fmt.Fprintf(&b, "- {name: %s, plugins: [{name: hostile, settings: {misbehave: %s, revision: %d}}]}\n", m, m, c.revision)
			bindings += fmt.Sprintf("- {namespaces: [%s], policy: %s}\n", m, m)
		}
	}
	return replaceFile(c.path, b.String()+bindings)
}

// replaceFile replaces a file atomically: readers see either the old or the new content.
func replaceFile(path, text string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
