// Package strictyaml decodes YAML and JSON and reports every mistake with its line or its full path, unlike decoders that
// stop at the first one, omit list indexes or ignore unknown fields.
package strictyaml
