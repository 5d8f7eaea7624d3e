package emit

import "github.com/dave/jennifer/jen"

// fewElements is the largest number of elements that share a line.
const fewElements = 3

// elements is the braces of a composite literal, on one line when it is short.
func elements(values []jen.Code) *jen.Statement {
	if len(values) <= fewElements {
		return jen.Values(values...)
	}
	return lines(values)
}

// arguments is the parentheses of a call, on one line when it is short.
func arguments(values []jen.Code) *jen.Statement {
	if len(values) <= fewElements {
		return jen.Params(values...)
	}
	return argumentLines(values)
}

// argumentLines is the parentheses of a call or of a function's parameters, with
// a line for each element.
func argumentLines(values []jen.Code) *jen.Statement {
	return jen.Custom(jen.Options{Open: "(", Close: ")", Separator: ",", Multi: true}, values...)
}

// lines is the braces of a composite literal with a line for each element.
func lines(values []jen.Code) *jen.Statement {
	return jen.Custom(jen.Options{Open: "{", Close: "}", Separator: ",", Multi: true}, values...)
}
