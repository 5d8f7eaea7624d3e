package schema

// Code names a kind of fault. A code keeps its meaning for ever, so that people
// and scripts can look it up. This package uses those from OBX1000 to OBX1999.
type Code string

// The file as YAML.
const (
	CodeTooLarge  Code = "OBX1001"
	CodeEncoding  Code = "OBX1002"
	CodeCharacter Code = "OBX1003"
	CodeEmpty     Code = "OBX1004"
	CodeSyntax    Code = "OBX1005"
	CodeNesting   Code = "OBX1006"
	CodeDocuments Code = "OBX1007"
	CodeAlias     Code = "OBX1008"
	CodeMergeKey  Code = "OBX1009"
	CodeTag       Code = "OBX1010"
)

// The shape of mappings and lists.
const (
	CodeUnknownKey   Code = "OBX1101"
	CodeDuplicateKey Code = "OBX1102"
	CodeMissingKey   Code = "OBX1103"
	CodeWrongKind    Code = "OBX1104"
	CodeNoItems      Code = "OBX1105"
	CodeExclusive    Code = "OBX1106"
)

// Single values.
const (
	CodeName         Code = "OBX1201"
	CodeReservedName Code = "OBX1202"
	CodeNotAllowed   Code = "OBX1203"
	CodeRange        Code = "OBX1204"
	CodeDuration     Code = "OBX1205"
	CodeRate         Code = "OBX1206"
	CodePath         Code = "OBX1207"
	CodeGoName       Code = "OBX1208"
	CodePackage      Code = "OBX1209"
	CodeIdentifier   Code = "OBX1210"
	CodeDefault      Code = "OBX1211"
	CodeDuplicate    Code = "OBX1212"
	CodeText         Code = "OBX1213"
)

// Types, payloads and fields.
const (
	CodeUnknownType Code = "OBX1301"
	CodeTypeCycle   Code = "OBX1302"
	CodeWireName    Code = "OBX1303"
	CodeCheckMisfit Code = "OBX1304"
	CodeBounds      Code = "OBX1305"
	CodePattern     Code = "OBX1306"
	CodeFieldOption Code = "OBX1307"
	CodeUnrouted    Code = "OBX1308"
)

// Destinations.
const (
	CodeUnknownPayload Code = "OBX1401"
	CodeLease          Code = "OBX1402"
	CodeRetry          Code = "OBX1403"
	CodeReconcile      Code = "OBX1404"
	CodeLimits         Code = "OBX1405"
	CodeSelectorPath   Code = "OBX1406"
	CodeSelectorKind   Code = "OBX1407"
	CodeSelectorMap    Code = "OBX1408"
)

// titles has every code of the language, in order.
var titles = []struct {
	code  Code
	title string
}{
	{CodeTooLarge, "the specification is too large"},
	{CodeEncoding, "the specification is not UTF-8"},
	{CodeCharacter, "a character that a specification cannot hold"},
	{CodeEmpty, "the specification is empty"},
	{CodeSyntax, "the specification is not YAML"},
	{CodeNesting, "nested too deeply"},
	{CodeDocuments, "more than one YAML document"},
	{CodeAlias, "an anchor or alias"},
	{CodeMergeKey, "a merge key"},
	{CodeTag, "a YAML tag"},

	{CodeUnknownKey, "an unknown key"},
	{CodeDuplicateKey, "a key given twice"},
	{CodeMissingKey, "a required key is missing"},
	{CodeWrongKind, "a value of the wrong kind"},
	{CodeNoItems, "nothing where at least one is needed"},
	{CodeExclusive, "keys that exclude each other"},

	{CodeName, "a malformed name"},
	{CodeReservedName, "a reserved name"},
	{CodeNotAllowed, "not one of the allowed values"},
	{CodeRange, "a number out of range"},
	{CodeDuration, "a malformed or unsuitable duration"},
	{CodeRate, "a malformed rate"},
	{CodePath, "an unsuitable directory"},
	{CodeGoName, "an unsuitable go_name"},
	{CodePackage, "an unsuitable package name"},
	{CodeIdentifier, "an unsuitable name of a table, schema or column"},
	{CodeDefault, "a default that is no value of its column"},
	{CodeDuplicate, "the same value twice"},
	{CodeText, "an unsuitable text"},

	{CodeUnknownType, "an unknown type"},
	{CodeTypeCycle, "a type that contains itself"},
	{CodeWireName, "an unsuitable or repeated wire name"},
	{CodeCheckMisfit, "a check or option that does not fit the type"},
	{CodeBounds, "a lower bound above the upper one"},
	{CodePattern, "a pattern that does not compile"},
	{CodeFieldOption, "an option of fields on something else"},
	{CodeUnrouted, "a payload that no destination accepts"},

	{CodeUnknownPayload, "an unknown payload"},
	{CodeLease, "a lease that does not exceed the timeout"},
	{CodeRetry, "a retry schedule that contradicts itself"},
	{CodeReconcile, "an unsuitable reconciliation schedule"},
	{CodeLimits, "limits that do not fit together"},
	{CodeSelectorPath, "a path that leads to no usable field"},
	{CodeSelectorKind, "a field whose type cannot be part of a key"},
	{CodeSelectorMap, "a payload without a path"},
}

// Title says in a few words what c is about; "" for a code of another package.
func (c Code) Title() string {
	for _, t := range titles {
		if t.code == c {
			return t.title
		}
	}
	return ""
}
