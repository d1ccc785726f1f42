import mlflow


class Echo(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return model_input


mlflow.models.set_model(Echo())
