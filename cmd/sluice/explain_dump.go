package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// dumpRequests writes requests to files in a directory, one each, and returns their names.
func dumpRequests(dir string, requests []api.Request) (files []string, err error) {
	if len(requests) == 0 {
		return nil, fmt.Errorf("--dump-request: no plugin has answered a request for this Service")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--dump-request: %w", err)
	}
	for i := range requests {
		var text bytes.Buffer
		if err := json.Indent(&text, requests[i].Fixture, "", "  "); err != nil {
			return nil, fmt.Errorf("--dump-request: %w", err)
		}
		text.WriteByte('\n')
		file := filepath.Join(dir, fileName(requests[i].Name)+".json")
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			return nil, fmt.Errorf("--dump-request: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

// fileName returns a name without what has a meaning in file names: names in manifests and of plugins may contain anything.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, strings.TrimLeft(name, "."))
}
