package printer

import (
	"encoding/json"
	"io"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Object prints a value as JSON or YAML; both have the same fields.
func Object(w io.Writer, format string, v any) error {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func NewTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }
