package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// rangeText says what values a setting may have, "" for any.
func (s *Setting) rangeText() string {
	if len(s.Values) > 0 {
		return quoted(s.Values)
	}
	least, most := strings.Trim(string(s.Min), `"`), strings.Trim(string(s.Max), `"`)
	if s.Type == Percent {
		if least == "" {
			least = "0"
		}
		if most == "" {
			most = "100"
		}
	}
	switch {
	case least != "" && most != "":
		return least + " to " + most
	case least != "":
		return least + " or more"
	case most != "":
		return "at most " + most
	}
	return ""
}

func (s *Setting) defaultText() string {
	switch {
	case s.Required:
		return "required"
	case s.Default == nil:
		return ""
	}
	return string(s.Default)
}

// Row is a setting in a table for people.
type Row struct{ Path, Type, Range, Default, Text string }

// String returns a row as a line of text.
func (r Row) String() string {
	out := r.Path + ", " + r.Type
	if r.Range != "" {
		out += ", " + r.Range
	}
	switch r.Default {
	case "":
	case "required":
		out += ", required"
	default:
		out += ", default " + r.Default
	}
	if r.Text != "" {
		out += ": " + r.Text
	}
	return out
}

// Rows returns all settings, those within lists, maps and objects after them.
func (m *Manifest) Rows() (out []Row) {
	var add func(s *Setting, path string)
	add = func(s *Setting, path string) {
		row := Row{path, string(s.Type), s.rangeText(), s.defaultText(), s.Text}
		inner := s
		for ; inner.Items != nil; inner = inner.Items {
			row.Type += " of " + string(inner.Items.Type)
			path += "[]"
		}
		if out = append(out, row); inner != s && inner.rangeText() != "" {
			out = append(out, Row{path, string(inner.Type), inner.rangeText(), "", inner.Text})
		}
		for i := range inner.Fields {
			add(&inner.Fields[i], join(path, inner.Fields[i].Name))
		}
	}
	for i := range m.Settings {
		add(&m.Settings[i], m.Settings[i].Name)
	}
	return out
}

// Table returns the settings as a table in Markdown.
func (m *Manifest) Table() string {
	switch {
	case m.Settings == nil:
		return "Any.\n"
	case len(m.Settings) == 0:
		return "None.\n"
	}
	var b strings.Builder
	b.WriteString("| field | type | range | default | |\n|---|---|---|---|---|\n")
	code := func(s string) string {
		if s == "" || s == "required" {
			return s
		}
		return "`" + strings.ReplaceAll(s, "|", `\|`) + "`"
	}
	for _, r := range m.Rows() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Path, r.Type, strings.ReplaceAll(r.Range, "|", `\|`), code(r.Default), strings.ReplaceAll(r.Text, "|", `\|`))
	}
	return b.String()
}

// JSONSchema returns the schema of the settings in the form of OpenAPI v3 that CustomResourceDefinitions have.
func (m *Manifest) JSONSchema() map[string]any {
	if m.Settings == nil {
		return map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	}
	return (&Setting{Type: Object, Fields: m.Settings}).schema()
}

func (s *Setting) schema() map[string]any {
	out := map[string]any{}
	if s.Text != "" {
		out["description"] = s.Text
	}
	if s.Default != nil {
		out["default"] = s.Default
	}
	bound := func(least, most string) {
		if s.Min != nil {
			out[least] = s.Min
		}
		if s.Max != nil {
			out[most] = s.Max
		}
	}
	switch s.Type {
	case Integer, Number, Percent:
		out["type"] = "number"
		if s.Type == Integer {
			out["type"] = "integer"
		}
		if s.Type == Percent {
			out["minimum"], out["maximum"] = json.RawMessage("0"), json.RawMessage("100")
		}
		bound("minimum", "maximum")
	case Duration: // its range is the host's to check
		out["type"], out["format"] = "string", "duration"
	case Text: // lengths there count characters, and here bytes: what is too long there is too long here
		out["type"] = "string"
		if len(s.Values) > 0 {
			out["enum"] = s.Values
		}
		if s.Max != nil {
			out["maxLength"] = s.Max
		}
	case Boolean:
		out["type"] = "boolean"
	case List:
		out["type"], out["items"] = "array", s.Items.schema()
		bound("minItems", "maxItems")
	case Map:
		out["type"], out["additionalProperties"] = "object", s.Items.schema()
		bound("minProperties", "maxProperties")
	case Object:
		properties, required := map[string]any{}, []string{}
		for i := range s.Fields {
			f := &s.Fields[i]
			properties[f.Name] = f.schema()
			if f.Required {
				required = append(required, f.Name)
			}
		}
		out["type"], out["properties"] = "object", properties
		if len(required) > 0 {
			out["required"] = required
		}
	}
	return out
}
