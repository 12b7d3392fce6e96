// The C name of <cmath>.
#pragma once
#include <cmath>
